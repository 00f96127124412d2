"""ONNX graphs: names and edits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from qtool.backends.onnx.graph import Graph, StoredTensors, Value, read_graph
from qtool.backends.onnx.graph_edits import add_int64, append_node

TENSORS: Mapping[str, np.ndarray[Any, Any]] = {
    "float32": np.array([[1, -2, 0.5]], np.float32),
    "float16": np.array([1, -2], np.float16),
    "bool": np.array([True, False]),
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 2), np.float32),
    "bfloat16": np.array([1, -2], ml_dtypes.bfloat16),
    "float8": np.array([1, -2], ml_dtypes.float8_e4m3fn),
    "int4": np.array([1, -2, 7], ml_dtypes.int4),
    "uint4": np.array([[1, 15, 7]], ml_dtypes.uint4),
    "words": np.array(["one", "two"], object),
}


def body(*nodes: onnx.NodeProto, output: str, **stored: np.ndarray[Any, Any]) -> onnx.GraphProto:
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    return helper.make_graph(nodes, output, [], [made], constants)


def nested() -> onnx.ModelProto:
    """Branches in a branch; they read the outer x and h, an own h and an own constant."""
    one = np.ones((), np.float32)
    inner = body(helper.make_node("Add", ["h", "x"], ["i"]), output="i")
    same = body(helper.make_node("Identity", ["h"], ["j"]), output="j")
    choice = helper.make_node("If", ["flag"], ["k"], then_branch=inner, else_branch=same)
    twice = body(helper.make_node("Mul", ["x", "two"], ["h"]), choice, output="k", two=one)
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="relu"),
        helper.make_node("If", ["flag"], ["y"], name="if", then_branch=twice, else_branch=same),
        helper.make_node("Constant", [], ["ints"], value_ints=[1, 2]),
        helper.make_node("Constant", [], ["floats"], value_floats=[1.5]),
        helper.make_node("Constant", [], ["float"], value_float=0.1),
        helper.make_node("Constant", [], ["text"], value_string="one"),
        helper.make_node("Constant", [], ["texts"], value_strings=["one", "two"]),
        helper.make_node("Constant", [], ["tensor"], value=numpy_helper.from_array(one)),
        helper.make_node("Clip", ["h", "", "float"], ["z", ""], domain="other", alpha=0.1),
        helper.make_node("Sum", ["z", "z", "nowhere"], ["s"], mode="edge", words=["a"], sizes=[3]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", None, 3]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "s")]
    stored = [numpy_helper.from_array(a, n) for n, a in TENSORS.items()]
    typed = [helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 1, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored, value_info=typed)
    return helper.make_model(graph)


def of_value(value: Value | None) -> Any:
    if value is None:
        return None
    maker, users = value.producer, sorted(u.node.op_type for u in value.uses)
    name = None if maker is None else maker.op_type
    return value.name, name, users, value.dtype, value.shape, value.is_output


def by_onnx_ir(value: ir.Value | None) -> Any:
    if value is None:
        return None
    maker, users = value.producer(), sorted(u.node.op_type for u in value.uses())
    name = None if maker is None else maker.op_type
    shape = None if value.shape is None else tuple(getattr(d, "value", d) for d in value.shape)
    dtype = None if value.dtype is None else value.dtype.numpy()
    return value.name, name, users, dtype, shape, value.is_graph_output()


def test_connections_and_types() -> None:
    message = nested()
    own, other = read_graph(message.graph, message.graph.node), ir.from_proto(message).graph
    for mine, theirs in zip(own, other, strict=True):
        assert (mine.op_type, mine.domain) == (theirs.op_type, theirs.domain)
        for ours, values in ((mine.inputs, theirs.inputs), (mine.outputs, theirs.outputs)):
            assert list(map(of_value, ours)) == list(map(by_onnx_ir, values))
    for ours, values in (
        (own.inputs, other.inputs),
        (own.outputs, other.outputs),
        (own.initializers.values(), other.initializers.values()),
    ):
        assert list(map(of_value, ours)) == list(map(by_onnx_ir, values))


def test_attributes() -> None:
    message = nested()
    own, other = read_graph(message.graph, message.graph.node), ir.from_proto(message).graph
    compared = 0
    for mine, theirs in zip(own, other, strict=True):
        assert list(mine.attributes) == list(theirs.attributes)
        for name, attribute in theirs.attributes.items():
            if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.TENSOR):
                whole = attribute.value
                assert mine.attributes[name] == (list(whole) if isinstance(whole, tuple) else whole)
                compared += 1
    assert compared == 9


def test_nodes_of_subgraphs_belong_to_the_node_around_them() -> None:
    message = nested()
    graph = read_graph(message.graph, message.graph.node)
    relu, choice = graph.nodes[:2]
    assert [n.op_type for n in choice.inner] == ["Identity", "Mul", "If", "Identity", "Add"]
    assert {n.around for n in choice.inner} == {choice}
    assert relu.around is None
    assert [u.node.op_type for u in relu.outputs[0].uses] == ["Identity", "Clip"]  # one has its own
    mul = choice.inner[1]
    assert [v.is_inner for v in (*mul.inputs, *mul.outputs) if v] == [False, True, True]


def constants(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    made = {v.name: v for n in graph for v in n.outputs}
    values = {**graph.initializers, **made}
    return {n: v.array for n, v in values.items() if v.array is not None}


def test_constants() -> None:
    message = nested()
    graph = read_graph(message.graph, message.graph.node, StoredTensors(None).array)
    whole, other = constants(graph), ir.from_proto(message).graph
    values = [*other.initializers.values(), *(v for n in other for v in n.outputs)]
    for value in values:
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is None:
            assert value.name not in whole
            continue
        array, expected = whole.pop(str(value.name)), tensor.numpy()
        assert array.shape == expected.shape
        if array.dtype == object:
            assert array.tolist() == expected.tolist()
        else:
            np.testing.assert_array_equal(array, expected, strict=True)
    assert not whole


def test_tensors_in_another_file(tmp_path: Path) -> None:
    onnx.save(
        nested(), tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0
    )
    message = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert sum(bool(t.external_data) for t in message.graph.initializer) > 6
    graph = read_graph(message.graph, message.graph.node, StoredTensors(tmp_path).array)
    whole = constants(graph)
    for name, expected in TENSORS.items():
        if name != "words":
            np.testing.assert_array_equal(whole[name], expected, strict=True)
            assert whole[name].flags.writeable


def bad(kind: str) -> onnx.ModelProto:
    message = nested()
    if kind == "two makers":
        message.graph.node[2].output[0] = "h"
    elif kind == "an input":
        message.graph.node[2].output[0] = "x"
    elif kind == "two values":
        message.graph.node[2].attribute.add(name="value_int", i=1, type=2)
    elif kind == "no value":
        message.graph.node[2].attribute[0].name = "other"
    elif kind == "type":
        message.graph.initializer[0].data_type = 99
    return message


@pytest.mark.parametrize("kind", ["two makers", "an input", "two values", "no value", "type"])
def test_a_graph_without_a_meaning_is_refused(kind: str) -> None:
    message = bad(kind)
    with pytest.raises((ValueError, KeyError)):
        read_graph(message.graph, message.graph.node, StoredTensors(None).array)


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
    np.testing.assert_array_equal(value.const_value.numpy(), np.array([-1], np.int64), strict=True)
    assert value.shape == ir.Shape([1])
