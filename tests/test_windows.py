"""Files, reports and conversions on a system that refuses what Windows does."""

import os
import tempfile
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.core.atomic import scratch_folder, sibling_folder, write_atomic
from qtool.core.errors import FileError
from qtool.evaluation.report.page.folder import replace_folder
from tests.windows import like_windows


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Refuse what Windows refuses; without locks, processes next to it would remove its folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    like_windows(monkeypatch)


def test_the_simulation_refuses(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        with pytest.raises(OSError, match="Bad file"):
            os.fsync(file.fileno())
        with pytest.raises(PermissionError):
            path.replace(tmp_path / "other")
        with pytest.raises(PermissionError):
            path.unlink()
    with pytest.raises(PermissionError):
        os.open(tmp_path, os.O_RDONLY)


@pytest.mark.parametrize("old", [None, b"old"], ids=["new", "over another"])
def test_a_file_is_written(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    write_atomic(path, b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"file": b"new"}


def test_a_failed_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileError, match="No space left"):
        write_atomic(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_temporary_folders_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as scratch, sibling_folder(tmp_path / "report") as sibling:
        (scratch / "file").touch()
        assert sibling.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_replaced(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        replace_folder(tmp_path / "report", {"report.json": content})
        assert (tmp_path / "report" / "report.json").read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize("external", [False, True])
def test_a_model_is_converted_and_replaced(tmp_path: Path, external: bool) -> None:
    model, batch = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval(), torch.randn(8, 64)
    quantized = qtool.quantize(model, [batch], accuracy="fast")
    for _ in range(2):
        quantized.export(tmp_path / "model.onnx", external_data=external)
    onnx.load(tmp_path / "model.onnx")
    assert len(list(tmp_path.iterdir())) == 1 + external


def test_data_in_use_stays_until_the_next_export(tmp_path: Path) -> None:
    quantized = qtool.quantize(nn.Linear(64, 64).eval(), [torch.randn(8, 64)], accuracy="fast")
    former = tmp_path / "model.onnx.0123456789abcdef.data"
    former.touch()
    with former.open("rb"):
        quantized.export(tmp_path / "model.onnx", external_data=True)
        assert former.is_file()
    quantized.export(tmp_path / "model.onnx", external_data=True)
    assert not former.is_file()
