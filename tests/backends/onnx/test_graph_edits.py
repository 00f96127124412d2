"""Edits of an ONNX graph: an appended node takes over name, result and readers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import parser

from qtool.backends.onnx.graph_edits import add_int64, append_node

TEXT = """<ir_version: 8, opset_import: ["": 18]>
    g (float[2, 3] x) => (float[2, 3] a, float[2, 3] b)
    { a = Relu (x)
      b = Neg (a) }"""


def graph() -> ir.Model:
    model = ir.from_proto(parser.parse_model(TEXT))
    for node in model.graph:
        node.name = node.outputs[0].name
    return model


def test_an_appended_node_takes_over_name_result_and_readers() -> None:
    model = graph()
    relu, neg = model.graph
    append_node(model, relu, "Reshape", [add_int64(model, "sizes", [2, 3])])
    names = [(n.name, n.op_type, n.outputs[0].name) for n in model.graph]
    assert names == [("a/Relu:a", "Relu", "a/Relu:a"), ("a", "Reshape", "a"), ("b", "Neg", "b")]
    assert [v.name for v in model.graph.outputs] == ["a", "b"]
    assert neg.inputs[0] is model.graph.outputs[0]
    assert model.graph.outputs[0].shape == ir.Shape([2, 3])
    assert relu.outputs[0].shape is None


def test_an_added_constant_is_an_initializer() -> None:
    model = graph()
    value = add_int64(model, "axis", [-1])
    assert model.graph.initializers["axis"] is value
    assert value.const_value is not None
    np.testing.assert_array_equal(value.const_value.numpy(), np.array([-1], np.int64), strict=True)
    assert value.shape == ir.Shape([1])
