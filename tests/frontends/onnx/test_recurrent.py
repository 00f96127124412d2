"""Recurrent layers of ONNX files: quantized, or left in float with the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

import qtool
from qtool.core.errors import PlanError
from qtool.core.sqnr import sqnr
from qtool.frontends.onnx.onnx_file import load_onnx

STEPS, INPUTS, HIDDEN, SAMPLES = 6, 12, 16, 32
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FORMS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    # operator, attributes, inputs behind W and R, the form that stays in float
    "lstm": ("LSTM", {}, "b", ""),
    "no bias": ("LSTM", {}, "", ""),
    "reverse": ("LSTM", {"direction": "reverse"}, "b", ""),
    "whole lengths": ("LSTM", {}, "b whole", ""),
    "gru": ("GRU", {"linear_before_reset": 1}, "b", ""),
    "reverse gru": ("GRU", {"linear_before_reset": 1, "direction": "reverse"}, "b", ""),
    "relu": ("RNN", {"activations": ["Relu"]}, "b", ""),
    "lengths": ("LSTM", {}, "b lengths", "no LSTM with sequence_lens; export it without, "),
    "peepholes": ("LSTM", {}, "b - - - p", "no LSTM with peepholes; train it without, "),
    "clip": ("LSTM", {"clip": 1.0}, "b", "no LSTM with clip"),
    "input_forget": ("LSTM", {"input_forget": 1}, "b", "no LSTM with input_forget = 1"),
    "activations": (
        *("LSTM", {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "b"),
        "no LSTM with the activations HardSigmoid, Tanh, Tanh",
    ),
    "reset": ("GRU", {}, "b", "no GRU with linear_before_reset = 0; torch's GRU"),
    "sigmoid": ("RNN", {"activations": ["Sigmoid"]}, "b", "no RNN with the activations Sigmoid"),
}


def network(kind: str, attributes: dict[str, Any], inputs: str) -> onnx.ModelProto:
    random, gates = np.random.default_rng(0), GATES[kind] * HIDDEN
    arrays = {
        "w": random.normal(size=(1, gates, INPUTS)) / 3,
        "r": random.normal(size=(1, gates, HIDDEN)) / 4,
        "b": random.normal(size=(1, 2 * gates)) / 10,
        "p": random.normal(size=(1, 3 * HIDDEN)) / 3,
        "head": random.normal(size=(HIDDEN, 8)) / 4,
    }
    lengths = np.arange(SAMPLES, dtype=np.int32) % STEPS + 1
    stored = {n: a.astype(np.float32) for n, a in arrays.items()}
    stored |= {"whole": np.full_like(lengths, STEPS), "lengths": lengths, "rows": np.array([0, -1])}
    read = ["x", "w", "r", *("" if name == "-" else name for name in inputs.split())]
    nodes = [
        helper.make_node(kind, read, ["all", "last"], "cell", hidden_size=HIDDEN, **attributes),
        helper.make_node("Squeeze", ["last"], ["state"]),
        helper.make_node("Squeeze", ["all"], ["states"]),
        helper.make_node("Add", ["states", "state"], ["sum"]),
        helper.make_node("MatMul", ["sum", "head"], ["y"], "head"),
    ]
    ports = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [STEPS, SAMPLES, width])
        for name, width in (("x", INPUTS), ("y", 8))
    ]
    used = {name for node in nodes for name in node.input}
    weights = [numpy_helper.from_array(a, n) for n, a in stored.items() if n in used]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_quantized_or_named(form: str, tmp_path: Path) -> None:
    kind, attributes, inputs, in_float = FORMS[form]
    onnx.save(network(kind, attributes, inputs), tmp_path / "float.onnx")
    random = np.random.default_rng(1)
    x = random.normal(size=(STEPS, SAMPLES, INPUTS)).astype(np.float32)
    made = qtool.quantize(load_onnx(tmp_path / "float.onnx"), [torch.from_numpy(x)], recover=[])
    made.export(tmp_path / "int8.onnx")
    paths = (tmp_path / "float.onnx", tmp_path / "int8.onnx")
    sessions = [ort.InferenceSession(p, providers=["CPUExecutionProvider"]) for p in paths]
    exact, coded = (session.run(None, {"x": x})[0] for session in sessions)
    assert sqnr(exact, coded) > 30

    notes = [note for note in made.notes if note.startswith("left in float")]
    expected = f"left in float: cell, since qtool quantizes {in_float}"
    assert len(notes) == bool(in_float)
    assert all(note.startswith(expected) for note in notes)
    read = {
        n for node in onnx.load(paths[1]).graph.node if node.op_type == kind for n in node.input
    }
    codes = {n for n in read if n.endswith(".dequantize")}
    assert len(codes) == (0 if in_float else 2)


def test_a_network_of_such_a_layer_alone_is_refused_with_the_form(tmp_path: Path) -> None:
    model = network("LSTM", {}, "b - - - p")
    del model.graph.node[-1]
    model.graph.output[0].name = "sum"
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = HIDDEN
    onnx.save(model, tmp_path / "float.onnx")
    x = torch.ones(STEPS, SAMPLES, INPUTS)
    with pytest.raises(PlanError, match=r"cell \(kept .*: qtool quantizes no LSTM with peepholes"):
        qtool.quantize(load_onnx(tmp_path / "float.onnx"), [x], accuracy="fast")
