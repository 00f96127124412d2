"""Files that are no valid ONNX, or not of the kind that is quantized."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from qtool.core.errors import CaptureError
from qtool.frontends.onnx.onnx_file import load_onnx
from tests.frontends.onnx.files import behind_conv, images, loaded

PLAIN = "y0 = Relu (h)"


def _node(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == kind)


def _attribute(model: onnx.ModelProto) -> None:
    _node(model, "Conv").attribute.append(helper.make_attribute("stridez", [2, 2]))


def _twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def _opset(version: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return change


def _bomb(model: onnx.ModelProto) -> None:
    """27 functions, each of two calls of the one before."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("b", 1)]
    for i in range(27):
        kind, domain = ("Neg", "") if i == 0 else (f"f{i - 1}", "b")
        nodes = [
            helper.make_node(kind, ["a"], ["c"], domain=domain),
            helper.make_node(kind, ["c"], ["d"], domain=domain),
        ]
        model.functions.append(helper.make_function("b", f"f{i}", ["a"], ["d"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("b", 1))
    relu = _node(model, "Relu")
    relu.op_type, relu.domain = "f26", "b"


def _circle(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("b", 1)]
    call = helper.make_node("f", ["a"], ["c"], domain="b")
    model.functions.append(helper.make_function("b", "f", ["a"], ["c"], [call], opsets))
    model.opset_import.append(helper.make_opsetid("b", 1))
    relu = _node(model, "Relu")
    relu.op_type, relu.domain = "f", "b"


def _input(kind: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.elem_type = kind

    return change


def _draws(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    relu = _node(model, "Relu")
    text = "branch () => (float[2] r) { r = RandomNormal <shape = [2]> () }"
    branches = {f"{each}_branch": onnx.parser.parse_graph(text) for each in ("then", "else")}
    relu.CopyFrom(helper.make_node("If", ["yes"], list(relu.output), relu.name, **branches))


def _quantized(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), "s"))
    relu = _node(model, "Relu")
    relu.op_type = "QuantizeLinear"
    relu.input.append("s")


def _training(model: onnx.ModelProto) -> None:
    for name, value in (("scale", 1), ("bias", 0), ("mean", 0), ("variance", 1)):
        full = np.full(model.graph.initializer[0].dims[0], value, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(full, name))
        _node(model, "Relu").input.append(name)
    relu = _node(model, "Relu")
    relu.op_type = "BatchNormalization"
    relu.output.extend(["new mean", "new variance"])
    relu.attribute.append(helper.make_attribute("training_mode", 1))


def _dropout(model: onnx.ModelProto) -> None:
    for name, value in (("ratio", np.float32(0.5)), ("training", np.array(True))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        _node(model, "Relu").input.append(name)
    _node(model, "Relu").op_type = "Dropout"


def _again(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[-1])


WRONG = {
    "an attribute that there is not": (_attribute, "Unrecognized attribute: stridez"),
    "a weight twice": (_twice, "w initializer name is not unique"),
    "a result twice": (_again, "not a valid ONNX file"),
    "opset 0": (_opset(0), "the file has opset 0"),
    "opset 999": (_opset(999), "the file has opset 999"),
    "a bomb of functions": (_bomb, "expand to 134,217,"),
    "functions in a circle": (_circle, "calls itself"),
    "text": (_input(onnx.TensorProto.STRING), "is not a tensor of a torch dtype"),
    "random numbers": (_draws, "draws random numbers; give them as an input"),
    "dropout": (_dropout, "(Dropout) is in training mode, in which it draws random numbers"),
    "training": (_training, "(BatchNormalization) is in training mode, in which ONNX Runtime"),
    "an output twice": (
        lambda model: model.graph.output.append(model.graph.output[0]),
        "is an output twice; remove it",
    ),
    "quantized": (
        _quantized,
        "is quantized already (QuantizeLinear at Relu1); give the float file",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_it_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    change, expected = WRONG[name]
    model = behind_conv(PLAIN)
    change(model)
    file = tmp_path / "wrong.onnx"
    onnx.save(model, file)
    with pytest.raises(CaptureError) as caught:
        load_onnx(file)
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_gru_of_no_features_is_never_run(tmp_path: Path) -> None:
    text = "(float[3, 1, 0] x) => (float[3, 1, 1, 2] y) { y = GRU <hidden_size = 2> (x, w, r) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {text}')
    for name, width in (("w", 0), ("r", 2)):
        weight = np.zeros((1, 6, width), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "gru.onnx")
    with pytest.raises(CaptureError, match=r"\(GRU\) has no input features"):
        load_onnx(tmp_path / "gru.onnx")


def test_functions_are_written_out(tmp_path: Path) -> None:
    model = behind_conv(PLAIN)
    opsets = [helper.make_opsetid("", 18)]
    body = [helper.make_node("Relu", ["a"], ["c"])]
    model.functions.append(helper.make_function("b", "f", ["a"], ["c"], body, opsets))
    model.opset_import.append(helper.make_opsetid("b", 1))
    relu = _node(model, "Relu")
    relu.op_type, relu.domain = "f", "b"
    found = loaded(model, tmp_path)
    assert [n.key for n in found.nodes] == ["Conv", "Relu"]
    assert not found.fallback
    assert (found(images()) >= 0).all()


def test_nodes_in_any_order(tmp_path: Path) -> None:
    """As tools that convert to float16 write them: the casts of inputs come last."""
    text = """flag = Constant <value = bool {1}> ()
        y0 = If (flag) <
            then_branch = t () => (float[N,4,8,8] q) { p = Relu (h) q = Neg (p) },
            else_branch = e () => (float[N,4,8,8] r) { r = Neg (h) }>"""
    model = behind_conv(text)
    expected = loaded(model, tmp_path)(images())
    for graph in (model.graph, model.graph.node[-1].attribute[0].g):
        nodes = list(graph.node)[::-1]
        del graph.node[:]
        graph.node.extend(nodes)
    assert model.graph.node[0].op_type == "If"
    assert torch.equal(loaded(model, tmp_path)(images()), expected)
