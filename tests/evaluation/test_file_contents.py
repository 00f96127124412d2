"""What a file holds, whoever made it: the numbers that were solved and observed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.backends.onnxruntime.readable import read_parameters
from qtool.backends.readable_file import TensorParameters
from qtool.core.errors import FileError, VerificationError
from qtool.core.types import UINT8
from tests.backends.onnx.export.networks import exported, quantized
from tests.evaluation.spoiled import captured, images


def test_what_was_solved_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("residual"))
    found = {p.tensor: p for p in read_parameters(path)}
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
    with pytest.raises(FileError, match=r"notes\.onnx is a text"):
        read_parameters(path)
    with pytest.raises(FileError, match="not a readable ONNX file"):
        read_parameters(tmp_path / "missing.onnx")


def test_an_onnx_file(chain_files: tuple[Path, Path]) -> None:
    plain, int8 = chain_files
    found = qtool.inspect(int8)
    assert isinstance(found, qtool.ModelContents)
    text = str(found).splitlines()
    assert text[:2] == ["operators", text[1]]
    assert text[1].split() == ["name", "operator", "runs", "as", "MACs", "why", "float"]
    assert [line.split()[2] for line in text if line.startswith("conv.1 ")] == ["QLinearConv"]
    assert text[-4].split() == [str(int8), "in", *found.coverage.runtime.split()]
    assert text[-1].split("  ")[-1] == "no self-test in this file"
    assert set(found.to_json()) >= {"file", "coverage", "parameters", "self_test"}
    assert qtool.inspect(plain).to_json()["parameters"] == []


def test_a_calibration(tmp_path: Path) -> None:
    made = qtool.calibrate(captured(), [images(16)], observer="minmax")
    made.save(tmp_path / "x.calib")
    found = qtool.inspect(tmp_path / "x.calib")
    assert isinstance(found, qtool.CalibrationContents)
    low, high = found.ranges["x"]
    assert (low, high) == (float(images(16).min()), float(images(16).max()))
    assert found.to_json()["samples"] == 16
    assert found.inputs == tuple(map(str, made.inputs))
    rows = dict(found.summary().rows)
    assert rows["inputs"] == "x: float32[batch, 3, 8, 8]"
    assert (rows["samples"], rows["target"]) == ("16", made.target)
    assert rows["ranges"].endswith("observer minmax")
    assert f"x {low:.6g} {high:.6g}".split() in [line.split() for line in str(found).splitlines()]


def test_neither(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no")
    with pytest.raises(FileError, match="nor a calibration of qtool"):
        qtool.inspect(tmp_path / "notes.txt")


def test_a_scale_of_text_is_refused_as_the_runtime_refuses_it(tmp_path: Path) -> None:
    node = helper.make_node("DequantizeLinear", ["w", "scale"], ["y"], name="weight")
    stored = [
        numpy_helper.from_array(np.ones(4, np.int8), "w"),
        helper.make_tensor("scale", TensorProto.STRING, [], [b"a half"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", [], [y], stored)), tmp_path / "m.onnx"
    )
    assert read_parameters(tmp_path / "m.onnx") == []
    with pytest.raises(VerificationError, match="does not load it"):
        qtool.inspect(tmp_path / "m.onnx")
