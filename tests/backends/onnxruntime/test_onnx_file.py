"""Files to read, and files without their quantization."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnxruntime.onnx_file import input_ranges

IDS = torch.randint(0, 16, (32, 6), generator=torch.Generator().manual_seed(0))


def quantizing(folder: Path, scale: np.ndarray, zero: np.ndarray | None) -> Path:
    """A file whose input `x` is quantized, with opset 21, in which codes may have 16 bits."""
    tensors = {"scale": scale} if zero is None else {"scale": scale, "zero": zero}
    kind = TensorProto.UINT8 if zero is None else helper.np_dtype_to_tensor_dtype(zero.dtype)
    node = helper.make_node("QuantizeLinear", ["x", *tensors], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", kind, [2, 3])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


@pytest.mark.parametrize(
    ("dtype", "zero", "low", "high"),
    [
        (np.uint8, 128, -64 - 6.4, 63.5 + 6.4),
        (np.int8, 0, -64 - 6.4, 63.5 + 6.4),
        (np.uint16, 0, -1638.4, 32767.5 + 1638.4),
        (np.int16, 0, -16384 - 1638.4, 16383.5 + 1638.4),
    ],
)
def test_the_range_of_an_input_is_that_of_its_codes_and_a_twentieth(
    dtype: type, zero: int, low: float, high: float, tmp_path: Path
) -> None:
    path = quantizing(tmp_path, np.float32(0.5), np.array(zero, dtype))
    assert input_ranges(path)["x"] == pytest.approx((low, high))


def test_codes_without_a_zero_point_are_uint8(tmp_path: Path) -> None:
    path = quantizing(tmp_path, np.array([0.5], np.float32), None)
    assert input_ranges(path)["x"] == pytest.approx((-6.4, 127.5 + 6.4))


def test_an_input_with_a_scale_for_each_channel_has_no_range(tmp_path: Path) -> None:
    scales = np.array([0.5, 1, 2], np.float32)
    path = quantizing(tmp_path, scales, np.zeros(3, np.uint8))
    assert input_ranges(path) == {}
