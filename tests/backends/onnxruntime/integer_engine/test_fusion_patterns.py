"""What is fused is what ONNX Runtime fuses: each small graph is asked of both."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime.integer_engine.fusion_patterns import match_move, match_operator
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph
from qtool.backends.onnxruntime.session import optimised_graph

INTEGER = {"Add": "QLinearAdd", "Relu": "Relu", "Conv": "QLinearConv", "MaxPool": "MaxPool"}


def qdq(
    op: str,
    *,
    readers: int = 1,
    clamp: str = "",
    zero: int = 0,
    scale: float = 0.1,
    quantized: bool = True,
    inputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> Q -> DQ -> op (-> clamp) -> Q -> DQ -> y, with further float readers of the result."""
    made = [("scale", np.float32(0.1)), ("zero", np.uint8(0))]
    made += [("out_scale", np.float32(scale)), ("out_zero", np.uint8(zero))]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x_q"], "x_q"),
        helper.make_node("DequantizeLinear", ["x_q", "scale", "zero"], ["x_d"], "x_d"),
    ]
    read = ["x_d"] * inputs
    if op == "Conv":
        made += [("w", np.ones((2, 2, 3, 3), np.int8)), ("w_zero", np.int8(0))]
        nodes.append(helper.make_node("DequantizeLinear", ["w", "scale", "w_zero"], ["w_d"], "w_d"))
        read.append("w_d")
    nodes.append(helper.make_node(op, read, ["r"], "op", **attributes))
    last = "r"
    if clamp:
        nodes.append(helper.make_node(clamp, ["r"], ["c"], "clamp"))
        last = "c"
    outputs = ["y"]
    if quantized:
        params = ["out_scale", "out_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [last, *params], ["y_q"], "y_q"))
        nodes.append(helper.make_node("DequantizeLinear", ["y_q", *params], ["y"], "y"))
    else:
        nodes.append(helper.make_node("Neg", [last], ["y"], "y"))
    for i in range(readers - 1):
        nodes.append(helper.make_node("Neg", ["r"], [f"n{i}"], f"n{i}"))
        outputs.append(f"n{i}")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 6, 6])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in made],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


CASES: dict[str, tuple[onnx.ModelProto, bool]] = {
    "conv": (qdq("Conv"), True),
    "conv in float": (qdq("Conv", quantized=False), False),
    "conv read twice": (qdq("Conv", readers=2), False),
    "a clamp that saturation does": (qdq("Conv", clamp="Relu"), True),
    "a clamp that it does not": (qdq("Conv", clamp="Relu", zero=100), False),
    "add": (qdq("Add", inputs=2), True),
    "add in float": (qdq("Add", inputs=2, quantized=False), False),
    "max pool": (qdq("MaxPool", kernel_shape=[2, 2]), True),
}


def ran(model: onnx.ModelProto, folder: Path) -> set[str]:
    file = folder / "model.onnx"
    onnx.save(model, file)
    return {n.op_type for n in optimised_graph(file).graph.node}


@pytest.mark.parametrize("name", CASES)
def test_it_is_fused_where_the_runtime_fuses(name: str, tmp_path: Path) -> None:
    model, expected = CASES[name]
    graph = QdqGraph(OnnxModel.of(model))
    node = next(n for n in graph.model.nodes if n.name == "op")
    found = match_operator(graph, node)
    assert (found is not None) is expected
    kernels = ran(model, tmp_path)
    if node.op_type == "MaxPool":  # runs on codes: nothing is dequantized before it
        assert "MaxPool" in kernels
    else:
        assert (INTEGER[node.op_type] in kernels) is expected
    if found is not None:
        assert found.quantizer is not None
        assert [n.name for n in found.absorbed][-1] == "y_q"


@pytest.mark.parametrize(("scale", "expected"), [(0.1, True), (0.2, False)])
def test_a_move_keeps_its_codes_only_with_equal_parameters(scale: float, expected: bool) -> None:
    graph = QdqGraph(OnnxModel.of(qdq("Transpose", scale=scale)))
    node = next(n for n in graph.model.nodes if n.name == "op")
    assert (match_move(graph, node) is not None) is expected
