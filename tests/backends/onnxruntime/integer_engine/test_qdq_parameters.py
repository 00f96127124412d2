"""What the codes in a file mean."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx.graph import Value
from qtool.backends.onnx.reading import OnnxModel, array_of
from qtool.backends.onnx.subgraph import unoptimized_session
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph, QuantizedTensor
from qtool.core.errors import KernelError
from qtool.core.types import INT8, UINT8


def graph(signed: bool = False, **replaced: np.ndarray) -> QdqGraph:
    """x -> Q -> DQ -> Conv of a dequantized weight -> y."""
    arrays = {
        "s": np.float32(0.5),
        "z": np.uint8(130),
        "w": np.array([[1, -2], [3, 4]], np.int8),
        "ws": np.array([0.25, 0.5], np.float32),
        "wz": np.zeros(2, np.int8),
        "u": np.array([0, 128, 255], np.uint8),
    } | replaced
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["e"], name="e", axis=0),
        helper.make_node("DequantizeLinear", ["u", "s"], ["f"], name="f"),
        helper.make_node("MatMul", ["d", "e"], ["y"], name="product"),
        helper.make_node("Add", ["d", "f"], ["other"], name="sum"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in arrays.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], stored))
    return QdqGraph(OnnxModel.of(model), signed)


def codes(read: QdqGraph, name: str) -> QuantizedTensor | None:
    return read.codes(value(read, name))


def value(read: QdqGraph, name: str) -> Value:
    values = (v for n in read.model.nodes for v in (*n.inputs, *n.outputs) if v is not None)
    return next(v for v in values if v.name == name)


def test_codes_of_activations_and_of_weights() -> None:
    read = graph()
    moving, stored = codes(read, "d"), codes(read, "e")
    assert moving is not None
    assert stored is not None
    assert (moving.name, moving.constant) == ("q", None)
    assert (moving.params.qtype, int(moving.params.zero_point)) == (UINT8, 130)
    assert stored.params.qtype is INT8
    assert stored.params.axis == 0
    assert stored.params.scale.tolist() == [0.25, 0.5]
    assert stored.constant.tolist() == [[1, -2], [3, 4]]
    assert codes(read, "y") is None
    assert codes(read, "x") is None


def test_stored_codes_are_held_once() -> None:
    read = graph()
    one, two = codes(read, "e"), codes(read, "e")
    assert one is not None
    assert two is not None
    assert one.constant is not None
    assert two.constant is not None
    assert (
        one.constant.data_ptr() == two.constant.data_ptr() == array_of(value(read, "w")).ctypes.data
    )


def test_without_a_zero_point_it_is_zero_of_the_stored_type() -> None:
    found = codes(graph(), "f")
    assert (found.params.qtype, int(found.params.zero_point)) == (UINT8, 0)


def test_signed_reads_uint8_less_128() -> None:
    read = graph(signed=True)
    moving, stored = codes(read, "d"), codes(read, "f")
    assert moving is not None
    assert stored is not None
    assert (moving.params.qtype, int(moving.params.zero_point)) == (INT8, 2)
    assert stored.constant.dtype == torch.int8
    assert stored.constant.tolist() == [-128, 0, 127]
    assert array_of(value(read, "u")).tolist() == [0, 128, 255]


def test_types_without_kernels_and_scales_at_run_time_are_refused() -> None:
    with pytest.raises(KernelError, match="d: codes of type uint16 have no integer kernel"):
        codes(graph(z=np.uint16(3)), "d")
    read = graph()
    value(read, "s").array = None
    with pytest.raises(KernelError, match="d: its scale is computed at run time"):
        codes(read, "d")


def weight_model(scale: np.ndarray, codes: np.ndarray, **attributes: int) -> onnx.ModelProto:
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"], name="weight", **attributes)
    stored = [numpy_helper.from_array(a, n) for a, n in ((codes, "w"), (scale, "s"))]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph([node], "g", [], [y], stored)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


SCALES = np.linspace(0.1, 0.9, 24, dtype=np.float32)
WEIGHT = np.arange(-12, 12, dtype=np.int8).reshape(4, 6)


@pytest.mark.parametrize(
    ("scale", "attributes"),
    [
        (SCALES[0], {"axis": 99}),  # of no consequence per tensor
        (SCALES[:1], {}),
        (SCALES[:6], {"axis": 1}),
        (SCALES[:4], {"axis": -2}),
        (SCALES[:12].reshape(2, 6), {"axis": 0, "block_size": 2}),
        (SCALES[:8].reshape(4, 2), {"axis": 1, "block_size": 3}),
        (SCALES[:6].reshape(1, 6), {"axis": 0, "block_size": 4}),  # as many as channels
        (SCALES[:8].reshape(4, 2), {"axis": -1, "block_size": 4}),  # the last block is shorter
    ],
)
def test_values_of_stored_codes_are_the_runtimes(
    scale: np.ndarray, attributes: dict[str, int]
) -> None:
    model = weight_model(np.asarray(scale), WEIGHT, **attributes)
    found = codes(QdqGraph(OnnxModel.of(model)), "y")
    assert found is not None
    (expected,) = unoptimized_session(model).run(None, {})
    np.testing.assert_array_equal(found.dequantize().numpy(), expected)


@pytest.mark.parametrize(
    ("scale", "attributes"),
    [
        (SCALES[:6], {"axis": 99}),
        (SCALES[:6], {"axis": -3}),
        (SCALES[:5], {"axis": 1}),
        (SCALES[:6].reshape(6, 1), {"axis": 1}),
        (SCALES[:6].reshape(1, 6), {"axis": 0, "block_size": 2}),
    ],
)
def test_scales_that_do_not_fit_are_refused(scale: np.ndarray, attributes: dict[str, int]) -> None:
    found = codes(QdqGraph(OnnxModel.of(weight_model(scale, WEIGHT, **attributes))), "y")
    assert found is not None
    with pytest.raises(KernelError, match=r"weight: scales of the shape .* do not fit codes of"):
        found.dequantize()
