"""Files appear whole or not at all."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qtool.core.atomic import (
    atomic_path,
    check_writable,
    scratch_folder,
    sibling_folder,
    write_atomic,
)
from qtool.core.errors import FileError
from qtool.core.shield import defer

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


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no open file")
def test_a_reader_of_the_old_file_reads_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


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
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"file is not a directory; name another one"):
        writer(tmp_path / "file" / "none" / "file.onnx")
    assert names(tmp_path) == ["file"]


def test_missing_folders_are_made_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "file.onnx"
    check_writable(path)
    assert names(tmp_path) == []
    write_atomic(path, b"new")
    assert names(path.parent) == ["file.onnx"]


def test_folders_that_were_made_go_with_a_failure(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(ValueError, match="no more"), atomic_path(tmp_path / "old" / "a" / "b"):
        raise ValueError("no more")
    assert names(tmp_path) == ["old"]
    assert names(tmp_path / "old") == []


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(FileError, match="is not writable"):
        writer(tmp_path / "file.onnx")


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    source, link = tmp_path / "float.onnx", tmp_path / "link.onnx"
    source.write_bytes(b"")
    link.symlink_to(source)
    for path in (source, link):
        with pytest.raises(FileError, match=r"float\.onnx is an input; name another file"):
            check_writable(path, "package.module:factory", None, source)
    check_writable(tmp_path / "int8.onnx", source)
    assert names(tmp_path) == ["float.onnx", "link.onnx"]


# --- what is there already -----------------------------------------------------------------------


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file", tmp_path / "link"
    file.write_bytes(b"old")
    link.symlink_to(file)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert names(tmp_path / "folder") == ["file"]


def test_the_mode_of_a_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o600)
    write_atomic(file, b"new")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("link", [False, True], ids=["itself", "behind a link"])
def test_a_pipe_is_refused_and_stays(
    tmp_path: Path, writer: Callable[[Path], None], link: bool
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    given = tmp_path / "link" if link else pipe
    if link:
        given.symlink_to(pipe)
    with pytest.raises(FileError, match="it is a pipe or a device; name an ordinary file"):
        writer(given)
    assert pipe.is_fifo()


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_refused(device: str) -> None:
    with pytest.raises(FileError, match="it is a pipe or a device"):
        check_writable(Path(device))  # to write one is not risked


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", ["a\0b", "n" * 300, "\udc80"], ids=["NUL", "long", "surrogate"])
def test_no_file_is_called_so(tmp_path: Path, writer: Callable[[Path], None], name: str) -> None:
    with pytest.raises(FileError, match=r"cannot write .*; name another file") as caught:
        writer(tmp_path / name)
    str(caught.value).encode()


def test_a_circle_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileError, match="cannot write"):
        check_writable(tmp_path / "a")


# --- what kills leave ----------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from qtool.core.atomic import atomic_path, scratch_folder, sibling_folder
target = Path(sys.argv[1])
with atomic_path(target) as file, sibling_folder(target) as folder, scratch_folder() as scratch:
    for path in (file, folder / "half", scratch / "half"):
        path.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_swept_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, scratch = tmp_path / "place", tmp_path / "scratch"
    for folder in (place, scratch):
        folder.mkdir()
        (folder / "somebody.else.part").touch()
    monkeypatch.setenv("TMPDIR", str(scratch))
    target = place / "file"
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [len(names(f)) for f in (place, scratch)] == [3, 2]
    monkeypatch.setattr("tempfile.tempdir", None)
    write_atomic(target, b"new")
    with scratch_folder():
        assert len(names(scratch)) == 2
    assert names(place) == ["file", "somebody.else.part"]
    assert names(scratch) == ["somebody.else.part"]


def test_what_is_being_written_is_not_swept(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with atomic_path(target) as first, sibling_folder(target) as folder:
        first.write_bytes(b"first")
        write_atomic(target, b"second")
        assert folder.is_dir()
    assert target.read_bytes() == b"first"
    assert names(tmp_path) == ["file"]


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = tempfile.mkdtemp
    gone: list[str] = []

    def swept(*args: Any, **kwargs: Any) -> str:
        folder = made(*args, **kwargs)
        if not gone:
            gone.append(folder)
            Path(folder).rmdir()
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with scratch_folder() as folder:
        assert folder.is_dir()
    assert str(folder) not in gone


# --- signals -------------------------------------------------------------------------------------


def _raise() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def raised() -> Iterator[None]:
    """Signals raise as on the command line: not where it would leave something half done."""

    def end(*_: object) -> None:
        if not defer(_raise):
            _raise()

    old = signal.signal(signal.SIGINT, end)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.usefixtures("raised")
@pytest.mark.parametrize(
    ("module", "name"),
    [(tempfile, "mkdtemp"), (tempfile, "mkstemp"), (shutil, "rmtree"), (os, "close")],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_signal_leaves_nothing_at_whatever_moment_it_comes(
    module: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the making of a file or folder, before anybody knows it; in front of its removal."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    call = getattr(module, name)

    def and_a_signal(*args: Any, **kwargs: Any) -> Any:
        if name.startswith("mk"):
            made = call(*args, **kwargs)
            signal.raise_signal(signal.SIGINT)
            return made
        signal.raise_signal(signal.SIGINT)
        return call(*args, **kwargs)

    monkeypatch.setattr(module, name, and_a_signal)
    with pytest.raises(KeyboardInterrupt), scratch_folder() as folder:
        write_atomic(folder / "file", b"new")
    monkeypatch.undo()
    assert names(tmp_path) == []
