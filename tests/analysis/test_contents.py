"""The quantization parameters that a file holds, whoever made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.analysis.contents import TensorParameters, parameters
from qtool.errors import FileError
from qtool.types import UINT8
from tests.export.networks import exported, quantized


def test_what_was_solved_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("residual"))
    found = {p.tensor: p for p in parameters(path)}
    solved = quantized("residual").parameters
    for name, params in solved.items():
        read = found[f"{name}.quantize" if params.qtype is UINT8 else f"{name}.codes"]
        assert read.scales == tuple(params.scale.reshape(-1).tolist())
        assert read.zero_points == tuple(params.zero_point.reshape(-1).tolist())
        assert read.dtype == str(params.qtype.numpy_dtype)
    assert len(found) == len(solved)


@pytest.mark.parametrize(
    ("scales", "text"),
    [((0.5,), "0.5"), ((0.5, 0.5), "0.5 (2)"), ((0.5, 0.25, 1.0), "0.25 .. 1 (3)")],
)
def test_a_row_is_short(scales: tuple[float, ...], text: str) -> None:
    row = TensorParameters("t", "int8", scales, (0,) * len(scales)).row()
    assert row[:3] == ("t", "int8", text)


def test_a_file_that_is_no_onnx_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("not a model")
    with pytest.raises(FileError, match=r"notes\.onnx: not a readable ONNX file"):
        parameters(path)
    with pytest.raises(FileError, match="not a readable ONNX file"):
        parameters(tmp_path / "missing.onnx")
