"""Small files whose tensors would take all memory are refused before the runtime sees them."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnxruntime.session import session
from qtool.backends.onnxruntime.unfolded_tensors import LIMIT, unfolded_tensor
from qtool.core.errors import VerificationError
from tests.named_cases import named_cases

Nodes = list[onnx.NodeProto]


def write(path: Path, nodes: Nodes, **stored: np.ndarray) -> Path:
    """A file that adds the largest element of `r` to x."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    end = [
        helper.make_node("ReduceMax", ["r"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    constants = [numpy_helper.from_array(v, k) for k, v in stored.items()]
    graph = helper.make_graph([*nodes, *end], "g", [x], [y], constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def doubled(times: int) -> Nodes:
    names = ["x", *(f"c{i}" for i in range(times - 1)), "r"]
    pairs = itertools.pairwise(names)
    return [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairs]


def looped(times: int, grown: str = "s") -> Nodes:
    """A Loop whose state s becomes s and another tensor, one behind the other."""
    kinds = (
        ("i", TensorProto.INT64, []),
        ("c", TensorProto.BOOL, []),
        ("s", TensorProto.FLOAT, [1]),
    )
    inputs = [helper.make_tensor_value_info(*kind) for kind in kinds]
    ends = [("d", TensorProto.BOOL, []), ("t", TensorProto.FLOAT, None)]
    outputs = [helper.make_tensor_value_info(*kind) for kind in ends]
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Concat", ["s", grown], ["t"], axis=0),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    count = helper.make_tensor("n", TensorProto.INT64, [], [times])
    constant = helper.make_node("Constant", [], ["n"], value=count)
    return [constant, helper.make_node("Loop", ["n", "", "x"], ["r"], body=body)]


def sizes(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def of(op: str, *inputs: str) -> Nodes:
    return [helper.make_node(op, inputs, ["r"])]


ENDS = dict(zip("abc", np.array([0, 2e9, 1], np.float32), strict=True))


@named_cases(
    "nodes, stored",
    ("doubled", doubled(31), {}),
    ("expanded", of("Expand", "x", "s"), {"s": sizes(50_000, 60_000)}),
    ("repeated", of("Tile", "x", "s"), {"s": sizes(2_000_000_000)}),
    ("filled", of("ConstantOfShape", "s"), {"s": sizes(3_000_000_000)}),
    ("counted", of("Range", *"abc"), ENDS),
    ("a state that doubles", looped(40), {}),
    ("a state that grows", looped(10**9, "one"), {"one": np.ones(1, np.float32)}),
)
def test_a_file_that_unfolds(nodes: Nodes, stored: dict[str, np.ndarray], tmp_path: Path) -> None:
    file = write(tmp_path / "a.onnx", nodes, **stored)
    tensor = unfolded_tensor(file)
    assert tensor is not None
    assert (tensor[0], tensor[1] > LIMIT) == ("r", True)
    with pytest.raises(VerificationError, match=r"'r' would take .* GiB, too much for a file"):
        session(file)


@pytest.mark.parametrize("nodes", [doubled(10), looped(10)])
def test_a_file_that_does_not(nodes: Nodes, tmp_path: Path) -> None:
    file = write(tmp_path / "a.onnx", nodes)
    assert unfolded_tensor(file) is None
    session(file)


def test_a_file_whose_weights_are_elsewhere_is_not_small(tmp_path: Path) -> None:
    """A table of 2 GiB is read, cast and transposed in language models."""
    file = write(tmp_path / "a.onnx", of("Transpose", "table"), table=np.zeros((2, 2), np.float32))
    model = onnx.load(file)
    (table,) = model.graph.initializer
    table.ClearField("raw_data")
    table.dims[:] = [1 << 17, 1 << 12]
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value="weights.data")
    file.write_bytes(model.SerializeToString())
    assert unfolded_tensor(file) is None


def test_a_small_network_on_large_images(tmp_path: Path) -> None:
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 2160, 3840])
        for n, c in (("x", 3), ("y", 3))
    )
    wide = numpy_helper.from_array(np.zeros((64, 3, 1, 1), np.float32), "wide")
    narrow = numpy_helper.from_array(np.zeros((3, 64, 1, 1), np.float32), "narrow")
    nodes = [
        helper.make_node("Conv", ["x", "wide"], ["h"]),
        helper.make_node("Conv", ["h", "narrow"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [wide, narrow])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "a")
    assert unfolded_tensor(tmp_path / "a") is None


def test_a_range_of_constant_nodes(tmp_path: Path) -> None:
    constants = [
        helper.make_node("Constant", [], [n], value=numpy_helper.from_array(v))
        for n, v in ENDS.items()
    ]
    assert unfolded_tensor(write(tmp_path / "a.onnx", [*constants, *of("Range", *"abc")]))


def test_what_is_no_file_is_left_to_its_reader(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    assert unfolded_tensor(tmp_path / "a.onnx") is None
    assert unfolded_tensor(tmp_path / "b.onnx") is None
