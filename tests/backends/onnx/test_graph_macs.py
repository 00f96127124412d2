"""The work of graphs with bodies, counted by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx.graph_macs import model_macs

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WEIGHT = np.zeros((8, 8), np.float32)
Info = onnx.ValueInfoProto


def info(name: str, sizes: Sequence[Any] | None, kind: int = FLOAT) -> Info:
    return helper.make_tensor_value_info(name, kind, sizes)


def model(
    nodes: list[onnx.NodeProto], inputs: list[Info], outputs: str, **constants: np.ndarray[Any, Any]
) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    results = [info(name, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "g", inputs, results, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def product(x: str, result: str) -> onnx.NodeProto:
    return helper.make_node("MatMul", [x, "w"], [result])


def loop(step: list[onnx.NodeProto], states: Sequence[str] = ("s",)) -> onnx.GraphProto:
    """A body that reads the states and writes `<state>o`."""
    nodes = [helper.make_node("Identity", ["c"], ["co"]), *step]
    inputs = [info("i", [], INT64), info("c", [], BOOL), *(info(s, ["N", 8]) for s in states)]
    outputs = [info("co", [], BOOL), *(info(f"{s}o", None) for s in states)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def looped(body: onnx.GraphProto, runs: str = "runs") -> list[onnx.NodeProto]:
    return [helper.make_node("Loop", [runs, "go", "x"], ["y"], body=body)]


GO = {"w": WEIGHT, "go": np.array(True)}
X = [info("x", ["N", 8])]
ONE = 5 * 8 * 8  # five rows by the weight


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [info(nodes[-1].output[0], None)])


def test_a_loop_with_products_has_no_count() -> None:
    body = loop([product("s", "m"), helper.make_node("Tanh", ["m"], ["so"])])
    whole = model(looped(body), X, "y", runs=np.array(3), **GO)
    assert model_macs(whole, [(FLOAT, (5, 8))], [None]) is None


def test_a_layer_behind_sizes_that_are_computed() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["x", "shape"], ["same"]),
        product("same", "y"),
    ]
    whole = model(nodes, X, "y", w=WEIGHT)
    assert model_macs(whole, [(FLOAT, (5, 8))], [None]) == ONE


def test_a_loop_without_products_has_no_work_that_counts() -> None:
    body = loop([helper.make_node("Tanh", ["s"], ["so"])])
    whole = model(looped(body, runs=""), X, "y", **GO)
    assert model_macs(whole, [(FLOAT, (5, 8))], [None]) == 0


def test_an_if_counts_as_its_larger_branch() -> None:
    branches = {
        "then_branch": branch("then", product("x", "m"), product("m", "a")),
        "else_branch": branch("else", helper.make_node("Tanh", ["x"], ["b"])),
    }
    whole = model([helper.make_node("If", ["go"], ["y"], **branches)], X, "y", **GO)
    assert model_macs(whole, [(FLOAT, (5, 8))], [None]) == 2 * ONE


def test_sizes_behind_operators_of_the_runtime_are_known() -> None:
    domain = {"domain": "com.microsoft"}
    sizes = {"K": 8, "N": 8, "bits": 4, "block_size": 32}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "b", "s"], ["m"], **domain, **sizes),
        helper.make_node("QuickGelu", ["m"], ["g"], **domain),
        product("g", "z"),
    ]
    blocks, scales = np.zeros((8, 1, 16), np.uint8), np.ones(8, np.float32)
    whole = model(nodes, X, "z", w=WEIGHT, b=blocks, s=scales)
    assert model_macs(whole, [(FLOAT, (5, 8))], [None]) == 2 * ONE


def test_the_work_of_a_decoder_of_another_tool() -> None:
    """Its table is in blocks, its projections are packed, and its norms return the sum, too."""
    domain = {"domain": "com.microsoft"}
    heads = {"num_heads": 2, "kv_num_heads": 1}
    sizes = {"K": 8, "N": 16, "bits": 4, "block_size": 32}
    nodes = [
        helper.make_node("GatherBlockQuantized", ["table", "ids", "s"], ["e"], **domain),
        helper.make_node("SimplifiedLayerNormalization", ["e", "g"], ["n"]),
        helper.make_node("MatMulNBits", ["n", "b", "s"], ["qkv"], **domain, **sizes),
        helper.make_node("GroupQueryAttention", ["qkv", "", ""], ["a"], **domain, **heads),
        helper.make_node(
            "SkipSimplifiedLayerNormalization", ["a", "e", "g"], ["m", "", "", "sum"], **domain
        ),
        product("sum", "z"),
    ]
    stored = {name: np.zeros((5, 4), np.uint8) for name in ("table", "b")}
    ones = np.ones(8, np.float32)
    whole = model(nodes, [info("ids", None)], "z", w=WEIGHT, s=ones, g=ones, **stored)
    attention = 2 * 2 * 5 * 5 * 4
    assert model_macs(whole, [(TensorProto.INT64, (1, 5))], [None]) == (
        5 * 8 * 16 + attention + ONE
    )


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_recurrent_layers_with_lengths(kind: str) -> None:
    gates, hidden = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind], 6
    node = helper.make_node(
        kind, ["x", "w", "r", "", "len"], ["y"], hidden_size=hidden, direction="bidirectional"
    )
    w = np.zeros((2, gates * hidden, 8), np.float32)
    r = np.zeros((2, gates * hidden, hidden), np.float32)
    inputs = [info("x", ["T", "N", 8]), info("len", ["N"], TensorProto.INT32)]
    whole = model([node], inputs, "y", w=w, r=r)
    count = 2 * (7 * 5) * gates * hidden * (8 + hidden)  # directions x steps x rows x columns
    assert model_macs(whole, [(FLOAT, (7, 5, 8)), (TensorProto.INT32, (5,))], [None] * 2) == count


def test_an_operator_of_another_domain_has_no_count() -> None:
    node = helper.make_node("Mystery", ["x"], ["y"], domain="example")
    assert model_macs(model([node], X, "y"), [(FLOAT, (5, 8))], [None]) is None
