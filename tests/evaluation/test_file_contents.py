"""What a file holds, whoever made it: the numbers that were solved and observed."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.backends.model_file import TensorParameters
from qtool.backends.onnxruntime.onnx_file import read_parameters
from qtool.core.errors import VerificationError
from qtool.core.types import UINT8
from tests.backends.onnx.export.networks import exported, quantized


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
