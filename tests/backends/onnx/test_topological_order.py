"""Nodes that stand before what they read: sorted, and then read as any other file."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import qtool
from qtool.backends.onnx.nested_graphs import in_order, sort_nodes
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnx.storage import load, load_outline
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.core.errors import CaptureError, FileError
from qtool.frontends.onnx.onnx_file import load_onnx


def graph(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [2])], [])


def node(name: str, *inputs: str) -> onnx.NodeProto:
    return helper.make_node("Sum", inputs, [name], name=name)


def names(of: onnx.GraphProto) -> list[str]:
    return [n.name for n in of.node]


def test_what_is_in_order_stays() -> None:
    made = graph(node("a", "x"), node("b", "x"), node("c", "a", "b"))
    assert in_order(made)
    sort_nodes(made)
    assert names(made) == ["a", "b", "c"]


def test_nodes_move_behind_what_they_read() -> None:
    made = graph(node("c", "a", "b"), node("b", "a"), node("d", "x"), node("a", "x"))
    assert not in_order(made)
    sort_nodes(made)
    assert names(made) == ["d", "a", "b", "c"]
    assert in_order(made)


def test_a_branch_reads_from_outside() -> None:
    branch = helper.make_graph([node("t", "late")], "then", [], [])
    choice = helper.make_node("If", ["x"], ["y"], name="choice", then_branch=branch)
    made = graph(choice, node("late", "x"))
    sort_nodes(made)
    assert names(made) == ["late", "choice"]


@pytest.mark.parametrize("pairs", [[("a", "b"), ("b", "a")], [("a", "a")]], ids=["two", "one"])
def test_a_cycle_is_refused(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    made = graph(*(node(*pair) for pair in pairs))
    with pytest.raises(ValueError, match=r"form a cycle: 'a' \(Sum\) reads from it"):
        sort_nodes(made)
    onnx.save(helper.make_model(made), tmp_path / "a.onnx")
    for read in (load, load_outline):
        with pytest.raises(FileError, match="form a cycle"):
            read(tmp_path / "a.onnx")
    with pytest.raises(CaptureError, match="not a valid ONNX file: some of its nodes form a cycle"):
        load_onnx(tmp_path / "a.onnx")


def test_a_file_in_reverse_order_is_verified_as_any_other(tmp_path: Path) -> None:
    """ONNX Runtime runs it, so that the integer engine has to."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    path, x = tmp_path / "m.onnx", torch.randn(16, 4)
    qtool.quantize(model, [x], accuracy="fast").export(path)
    made = onnx.load(path)
    reverse = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(reverse)
    onnx.save(made, path)
    assert not in_order(made.graph)
    for read in (load(path), load_outline(path), OnnxModel.of(made).outline):
        assert in_order(read.graph)
    assert not in_order(made.graph)  # the caller's model stays as it is
    torch.testing.assert_close(lower(made)(x), lower(path)(x), rtol=0, atol=0)
    assert compare_codes(path, [[x.numpy()]]).passed
