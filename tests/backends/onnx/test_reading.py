"""A model read once: who makes and reads a tensor, constants, attributes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnx import storage
from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import (
    OnnxModel,
    array_of,
    graph_of,
    input_at,
    is_constant,
    name_of,
    values_read,
)
from qtool.core.errors import FileError

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def branch(name: str, op: str, *inputs: str) -> onnx.GraphProto:
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, inputs, [name])], name, [], [made])


def model(**weights: np.ndarray) -> onnx.ModelProto:
    """relu(x W), in a branch added to itself; a clip of it; and what nobody names."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node(
            "If",
            ["flag"],
            ["y"],
            name="choice",
            then_branch=branch("twice", "Add", "r", "r"),
            else_branch=branch("same", "Identity", "r"),
        ),
        helper.make_node("Constant", [], ["top"], value_float=6.0),
        helper.make_node("Clip", ["h", "", "top"], ["z"], name="clip"),
        helper.make_node("Pad", ["x", "pads"], ["p"], name="pad", mode="edge", axes=None),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 3]),  # as old files list weights
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")]
    arrays = {"w": W, "pads": np.array([0, 1, 0, 1])} | weights
    constants = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def node(read: OnnxModel, name: str) -> Node:
    return next(n for n in read.nodes if n.name == name)


def test_makers_and_readers() -> None:
    read = OnnxModel.of(model())
    assert [name_of(v) for v in read.inputs] == ["x", "flag"]
    assert [name_of(v) for v in read.outputs] == ["y", "z"]
    product = node(read, "product").outputs[0]
    assert product.producer is node(read, "product")
    assert [n.name for n in read.readers(product)] == ["r", "clip"]
    assert read.only_reader(product) is None  # two of them
    assert read.only_reader(node(read, "clip").outputs[0]) is None  # an output
    assert OnnxModel.of(read) is read


def test_a_subgraph_reads_for_the_node_that_holds_it() -> None:
    read = OnnxModel.of(model())
    relu, choice = node(read, "r"), node(read, "choice")
    assert read.only_reader(relu.outputs[0]) is choice
    assert [name_of(v) for v in values_read(choice)] == ["flag", "r"]


def test_nodes_without_names_are_called_after_what_they_make() -> None:
    read = OnnxModel.of(model())
    assert read.has_unnamed_nodes
    assert [n.name for n in read.nodes] == ["product", "r", "choice", "top", "clip", "pad"]
    assert not read.outline.graph.node[1].name
    assert not OnnxModel.of(named(model())).has_unnamed_nodes


def named(file: onnx.ModelProto) -> onnx.ModelProto:
    for each in file.graph.node:
        each.name = each.name or "named"
    return file


def test_constants_are_stored_or_given_by_a_node() -> None:
    read = OnnxModel.of(model())
    clip, product = node(read, "clip"), node(read, "product")
    assert array_of(input_at(clip, 2)) == np.float32(6)
    assert array_of(input_at(clip, 1)) is None  # left out
    assert array_of(input_at(clip, 5)) is None
    assert (name_of(clip.inputs[1]), name_of(clip.inputs[2])) == ("", "top")
    assert np.array_equal(array_of(product.inputs[1]), W)
    assert [is_constant(v) for v in (*product.inputs, None)] == [False, True, False]


def test_each_constant_is_held_once_and_torch_takes_it() -> None:
    weight = node(OnnxModel.of(model()), "product").inputs[1]
    assert array_of(weight) is array_of(weight)
    torch.from_numpy(array_of(weight))  # warns of an array that cannot be written into


def test_shapes_are_those_stated_and_those_inferred() -> None:
    known = OnnxModel.of(model()).value_info
    assert known["h"].type.tensor_type.shape.dim[1].dim_value == 3
    assert known["x"].type.tensor_type.shape.dim[0].dim_param == "n"


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose weight lies in a second one; the pads do not."""
    monkeypatch.setattr(storage, "SMALL", 20)
    path = tmp_path / "m.onnx"
    storage.save(model(pads=np.array([1, 1])), path, external=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == W.nbytes
    return path


def test_weights_in_a_second_file_are_views_of_it(apart: Path) -> None:
    read = OnnxModel.of(apart)
    weight = array_of(node(read, "product").inputs[1])
    assert np.array_equal(weight, W)
    assert not weight.flags.owndata
    weight[:] = 0  # of the view alone: the file stays as it is
    assert np.array_equal(array_of(node(OnnxModel.of(apart), "product").inputs[1]), W)
    assert [i.name for i in read.outline.graph.initializer] == ["pads"]


def test_small_tensors_of_a_second_file_stand_in_the_outline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(
        model(),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="all.data",
        size_threshold=0,
    )
    read = OnnxModel.of(tmp_path / "m.onnx")
    assert [len(i.raw_data) for i in read.outline.graph.initializer] == [W.nbytes, 32]
    assert np.array_equal(array_of(node(read, "product").inputs[1]), W)


def test_data_that_is_not_there_or_lies_elsewhere_is_refused(apart: Path, tmp_path: Path) -> None:
    data = tmp_path / "m.onnx.data"
    (tmp_path / "other").mkdir()
    data.rename(tmp_path / "other" / data.name)
    with pytest.raises(FileError, match=r"m\.onnx: .*m\.onnx\.data.* is not there"):
        OnnxModel.of(apart)
    data.symlink_to(tmp_path / "other" / data.name)
    assert np.array_equal(array_of(node(OnnxModel.of(apart), "product").inputs[1]), W)
    inner = apart.rename(tmp_path / "other" / "inner.onnx")
    (tmp_path / "other" / data.name).rename(tmp_path / "moved")
    (tmp_path / "other" / data.name).symlink_to(tmp_path / "moved")
    with pytest.raises(FileError, match="is outside of its folder"):
        OnnxModel.of(inner)


@pytest.mark.parametrize("damage", ["twice", "short", "text", "a word", "a producer"])
def test_what_is_no_graph_is_refused(damage: str, tmp_path: Path) -> None:
    file, path = model(), tmp_path / "m.onnx"
    if damage == "twice":
        file.graph.node[1].output[0] = "h"
    elif damage == "short":
        file.graph.initializer[0].raw_data = b"123"
    file.producer_name = "producer"
    data = b"no model" if damage == "text" else file.SerializeToString()
    for name, word in (("a word", b"Relu"), ("a producer", b"producer")):
        if damage == name:
            assert word in data
            data = data.replace(word, b"\xff" + word[1:])  # no UTF-8
    path.write_bytes(data)
    message = "is a text" if damage == "text" else "not a readable ONNX file"
    with pytest.raises(FileError, match=message):
        OnnxModel.of(path)


def test_a_graph_without_its_weights(apart: Path) -> None:
    graph = graph_of(onnx.load(apart, load_external_data=False))
    assert [n.op_type for n in graph][:2] == ["MatMul", "Relu"]
    assert graph.initializers["w"].dtype == np.float32
