"""Small files whose tensors would take all memory are refused before the runtime sees them."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnxruntime.session import session
from qtool.backends.onnxruntime.unfolding import LIMIT, largest_tensor
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
)
def test_a_file_that_unfolds(nodes: Nodes, stored: dict[str, np.ndarray], tmp_path: Path) -> None:
    file = write(tmp_path / "a.onnx", nodes, **stored)
    name, size = largest_tensor(file)
    assert (name, size > LIMIT) == ("r", True)
    with pytest.raises(VerificationError, match=r"'r' would take .* GiB, too much for a file"):
        session(file)


def test_a_file_that_does_not(tmp_path: Path) -> None:
    file = write(tmp_path / "a.onnx", doubled(10))
    assert largest_tensor(file) == ("r", 4096)
    session(file)


def test_what_is_no_file_is_left_to_its_reader(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    assert largest_tensor(tmp_path / "a.onnx") == ("", 0)
    assert largest_tensor(tmp_path / "b.onnx") == ("", 0)
