"""Ifs on sizes and on inputs that are constants."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from qtool.cli import main

import qtool
from qtool.core.errors import CaptureError, DataError, PlanError, VerificationError
from qtool.frontends.onnx.onnx_file import load_onnx
from tests.named_cases import cases


def _value(name: str, kind: int, *sizes: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, sizes)


def _stored(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def _graph(text: str, name: str) -> onnx.GraphProto:
    return onnx.parser.parse_graph(f"{name} () => {text}")


def _saved(path: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto]) -> Path:
    draw = np.random.default_rng(0)
    weights = {"w": (8, 1, 4), "v": (8, 8, 1)}
    stored = [_stored(n, draw.normal(size=s).astype(np.float32) / 3) for n, s in weights.items()]
    numbers = {"one": [1], "two": 2, "single": 1, "axis": [2], "rate": 16000}
    stored += [_stored(n, np.array(v, np.int64)) for n, v in numbers.items()]
    outputs = [onnx.ValueInfoProto(name="y")]
    outputs[0].type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 15)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def _squeezing(path: Path) -> Path:
    """torch.onnx's `squeeze(2)` of an unknown size: the branches differ in rank."""
    make = helper.make_node
    branches = {
        "then_branch": _graph("(float[N,8] t) { t = Squeeze (b, axis) }", "a"),
        "else_branch": _graph("(float[N,8,T] t) { t = Identity (b) }", "b"),
    }
    nodes = [
        make("Unsqueeze", ["x", "one"], ["x3"]),
        make("Conv", ["x3", "w"], ["a"], strides=[4]),
        make("Conv", ["a", "v"], ["b"]),
        make("Shape", ["b"], ["s"]),
        make("Gather", ["s", "two"], ["n"]),
        make("Equal", ["n", "single"], ["c"]),
        make("If", ["c"], ["q"], "if", **branches),
        make("ReduceMax", ["q"], ["y"], axes=[1], keepdims=0),
    ]
    return _saved(path, nodes, [_value("x", TensorProto.FLOAT, "N", "T")])


def _choosing(path: Path) -> Path:
    """The network is inside an If on an input; its branches have values of one name."""
    make = helper.make_node
    inner = "(float[N,8,T] y1) { h = Conv (x, w) y1 = %s (h) }"
    branches = {  # a name twice
        "then_branch": _graph(inner % "Relu", "a"),
        "else_branch": _graph(inner % "Neg", "b"),
    }
    nodes = [
        make("Equal", ["sr", "rate"], ["c"]),
        make("If", ["c"], ["h"], "if", **branches),
        make("Conv", ["h", "v"], ["y"], "last"),
    ]
    inputs = [_value("sr", TensorProto.INT64), _value("x", TensorProto.FLOAT, "N", 1, "T")]
    return _saved(path, nodes, inputs)


def _session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("length", "sizes"), [(16, (12, 16, 24)), (4, (4,))])
def test_branches_of_another_rank_follow_the_sizes_of_the_example(
    length: int, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    path, batch = _squeezing(tmp_path / "m.onnx"), 2 * torch.rand(64, length) - 1
    quantized = qtool.quantize(load_onnx(path), [batch] * 4, accuracy="fast")
    quantized.export(tmp_path / "int8.onnx")
    for size in sizes:
        x = np.random.default_rng(size).uniform(-0.8, 0.8, (3, size)).astype(np.float32)
        (expected,) = _session(path).run(None, {"x": x})
        (actual,) = _session(tmp_path / "int8.onnx").run(None, {"x": x})
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() < 0.1 * np.abs(expected).max()
    note = "another branch at other sizes" if length == 4 else "the model branches on that"
    assert any(note in n and "T" in n for n in quantized.notes)


def test_a_fixed_input_selects_the_branch_and_leaves_the_file(tmp_path: Path) -> None:
    path, x = _choosing(tmp_path / "m.onnx"), torch.randn(8, 1, 12)
    model = load_onnx(path, {"sr": 16000})
    rate = torch.tensor(16000)
    batches = [{"x": x, "sr": rate}, {"x": x}, (rate, x), x]
    quantized = qtool.quantize(model, batches, accuracy="fast")
    quantized.export(tmp_path / "int8.onnx")
    session = _session(tmp_path / "int8.onnx")
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert quantized.verify().coverage.share == 1
    arrays = {"x": x.numpy(), "sr": np.array(16000)}
    (expected,), (actual,) = (_session(path).run(None, arrays), session.run(None, {"x": x.numpy()}))
    assert np.abs(actual - expected).max() < 0.05 * np.abs(expected).max()
    qtool.evaluate(tmp_path / "int8.onnx", model, batches, seconds=0)
    message = r"input 'sr' is tensor\(8000\), and the model has it fixed"
    with pytest.raises(DataError, match=message):
        qtool.quantize(model, [{"x": x, "sr": torch.tensor(8000)}], accuracy="fast")


def test_a_network_inside_an_if_names_the_input_to_fix(tmp_path: Path) -> None:
    model = onnx.load(_choosing(tmp_path / "m.onnx"))
    model.graph.node.pop()
    model.graph.node[-1].output[:] = ["y"]
    onnx.save(model, tmp_path / "m.onnx")
    data = [{"sr": torch.tensor(16000), "x": torch.randn(4, 1, 12)}]
    with pytest.raises(PlanError, match=r"inside an If on sr: fix that input"):
        qtool.quantize(load_onnx(tmp_path / "m.onnx"), data, accuracy="fast")


@cases(
    "fixed, message",
    ({"rate": 1}, "there is no input 'rate' to fix; the inputs are sr, x"),
    ({"sr": 0.5}, "input 'sr' is int64, which cannot be 0.5"),
    ({"sr": [1, 2]}, r"input 'sr' has the shape \[\], the value to fix it to \[2\]"),
)
def test_values_that_do_not_fit_are_refused(
    fixed: dict[str, float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CaptureError, match=message):
        load_onnx(_choosing(tmp_path / "m.onnx"), fixed)
    with pytest.raises(CaptureError, match=r"is for \.onnx files"):
        qtool.load_model("torch.nn:Identity", fixed=fixed)


def test_the_command_fixes_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _choosing(tmp_path / "m.onnx")
    np.save("x.npy", torch.rand(40, 1, 12).numpy())
    arguments = ["quantize", "m.onnx", "--fix", "sr=16000", "--data", "x.npy", "-o", "out.onnx"]
    result = CliRunner().invoke(main, [*arguments, "--seconds", "0"], prog_name="qtool")
    assert result.exit_code == 0, result.output
    assert [i.name for i in _session(tmp_path / "out.onnx").get_inputs()] == ["x"]
    judged = ["out.onnx", "--model", "m.onnx", "--data", "x.npy"]
    commands = {
        "evaluate": ["evaluate", *judged, "--seconds", "0.01"],
        "report": ["report", *judged, "--seconds", "0.01", "-o", "report"],
    }
    for name, command in commands.items():
        result = CliRunner().invoke(main, command, prog_name="qtool")
        assert result.exit_code == 0, (name, result.output)
        result = CliRunner().invoke(main, [*command, "--fix", "sr=8000"], prog_name="qtool")
        assert result.exit_code == 2, (name, result.output)
        assert "fixed to 16000 in out.onnx, and fixed to 8000 in the float model" in result.output
    with pytest.raises(VerificationError, match=r"'sr' is fixed to 16000 .* and open in the float"):
        qtool.evaluate("out.onnx", load_onnx("m.onnx"), [torch.rand(4, 1, 12)])
    model = onnx.load("out.onnx")
    entry = next(p for p in model.metadata_props if p.key == "qtool_fixed_inputs")
    entry.value = '{"sr":8000}'
    onnx.save(model, "out.onnx")
    assert not qtool.verify("out.onnx").passed
