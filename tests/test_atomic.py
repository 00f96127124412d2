"""Files appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qtool.atomic import atomic_path, check_writable, write_atomic
from qtool.errors import FileError

WRITERS = [
    pytest.param(lambda path: write_atomic(path, b"new"), id="write_atomic"),
    pytest.param(check_writable, id="check_writable"),
]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("old", [None, b"old"], ids=["new", "over another"])
def test_written_whole(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "file.onnx"
    if old is not None:
        path.write_bytes(old)
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file.onnx"]


def test_mode_is_that_of_an_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "ordinary").touch()
    write_atomic(str(tmp_path / "ours"), b"new")
    modes = {p.stat().st_mode for p in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("old", [None, b"old"], ids=["new", "over another"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_of_a_failure(
    tmp_path: Path, old: bytes | None, error: type[BaseException]
) -> None:
    path = tmp_path / "file.onnx"
    if old is not None:
        path.write_bytes(old)

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half of it")
            assert temporary.parent == tmp_path, "a rename is atomic within a folder only"
            raise error

    with pytest.raises(error):
        write_half()
    assert names(tmp_path) == ([] if old is None else ["file.onnx"])
    assert old is None or path.read_bytes() == old


@pytest.mark.parametrize("step", ["replace", "fsync", "write_bytes", "mkstemp"])
def test_the_disk_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "file.onnx"
    path.write_bytes(b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    owner = {"fsync": os, "mkstemp": __import__("tempfile")}.get(step, Path)
    monkeypatch.setattr(owner, step, full)
    with pytest.raises(FileError, match=r"cannot write .*file\.onnx: No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.onnx"]


@pytest.mark.parametrize("writer", WRITERS)
def test_places_that_cannot_be_written(tmp_path: Path, writer: Callable[[Path], None]) -> None:
    with pytest.raises(FileError, match=r"is a directory; name a file"):
        writer(tmp_path)
    with pytest.raises(FileError, match=r"none does not exist; create it first"):
        writer(tmp_path / "none" / "file.onnx")
    assert names(tmp_path) == []


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(FileError, match="is not writable"):
        writer(tmp_path / "file.onnx")


def test_check_writable_writes_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "file.onnx")
    assert names(tmp_path) == []
