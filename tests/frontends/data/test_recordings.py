"""The steps of recordings have the states that a loop over the float model gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from onnx import numpy_helper
from qtool.cli import main
from torch import nn

import qtool
from qtool.core.errors import DataError
from tests.named_cases import cases

FRAMES = {"a": 7, "b": 4}
PAIRS = {"hn": "h", "cn": "c"}


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One step of two layers with a state each: x [N, 6], gain [], h and c [2, N, 4]."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 6] x, float gain, float[2, N, 4] h, float[2, N, 4] c)
          => (float[N, 4] p, float[2, N, 4] cn, float[2, N, 4] hn) {
            s = MatMul (x, w)
            t = Mul (s, gain)
            u = Add (t, h)
            hn = Tanh (u)
            v = Add (hn, c)
            cn = Sigmoid (v)
            r = ReduceMean <axes = [0], keepdims = 0> (cn)
            p = MatMul (r, q)
        }"""
    )
    weights = {"w": draw(6, 4), "q": draw(4, 4)}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    for name, steps in FRAMES.items():
        np.savez(tmp_path / name, x=draw(steps, 6), gain=np.full(steps, 0.5, np.float32))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def by_hand(file: Path) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(file, options)
    for name in FRAMES:
        recording = np.load(file.parent / f"{name}.npz")
        h = c = np.zeros((2, 1, 4), np.float32)
        for x, gain in zip(recording["x"], recording["gain"], strict=True):
            step = {"x": x[None], "gain": np.array(gain), "h": h, "c": c}
            yield step
            h, c = session.run(["hn", "cn"], step)


def test_the_steps_are_those_of_a_loop(file: Path) -> None:
    model = qtool.load_model(file)
    steps = list(qtool.load_data(file.parent, model=model, states=PAIRS))
    expected = list(by_hand(file))
    assert len(steps) == len(expected) == sum(FRAMES.values())
    assert any(step["h"].any() for step in expected)
    for step, loop in zip(steps, expected, strict=True):
        assert {n: t.numpy().tolist() for n, t in step.items()} == {
            n: a.tolist() for n, a in loop.items()
        }


def test_a_state_goes_with_the_only_output_of_its_shape(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3] x, float[N, 3] before) => (float[N] mean, float[N, 3] total) {
            total = Add (x, before)
            mean = ReduceMean <axes = [1], keepdims = 0> (total)
        }"""
    )
    onnx.save(model, tmp_path / "sum.onnx")
    np.save(tmp_path / "x.npy", x := draw(5, 3))
    model = qtool.load_model(tmp_path / "sum.onnx")
    steps = qtool.load_data(tmp_path / "x.npy", model=model, states="auto")
    totals = np.concatenate([step["before"].numpy() for step in steps])
    assert np.array_equal(totals, np.cumsum(np.vstack([np.zeros_like(x[:1]), x[:-1]]), 0))


def test_some_steps_are_evenly_spaced_over_all(file: Path) -> None:
    steps = qtool.load_data(file.parent, model=qtool.load_model(file), states=PAIRS, samples=4)
    expected = list(by_hand(file))
    assert steps.positions.tolist() == [0, 2, 5, 8]
    for at, step in zip(steps.positions, steps, strict=True):
        assert np.array_equal(step["c"], expected[at]["c"])


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = self.cell(x, state)
        return new.sum(1), new


def test_a_module_begins_with_the_states_of_the_recording() -> None:
    model, x, first = Cell().eval(), torch.randn(5, 3), torch.ones(1, 4)
    pairs = {"output_1": "state"}
    steps = list(qtool.unroll_recordings(model, iter([{"x": x, "state": first}]), pairs))
    state = first
    for row, step in zip(x, steps, strict=True):
        assert torch.equal(step["state"], state)
        with torch.no_grad():
            state = model(row[None], state)[1]


def test_the_command(file: Path) -> None:
    out = file.parent / "net.int8.onnx"
    data = ["--data", str(file.parent), "--state", "hn=h", "--state", "cn=c"]
    line = ["quantize", str(file), *data, "-o", str(out), "--seconds", "0"]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    line = ["evaluate", str(out), "--model", str(file), *data, "--seconds", "0.01", "--json"]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    assert '"samples": 11' in result.stdout


@cases(
    "states, recording, sentence",
    ({"hm": "h", "cn": "c"}, {}, "the model has no output 'hm'; its outputs are p, cn, hn"),
    ({"hn": "k", "cn": "c"}, {}, "the recording lacks the input 'h', which is no state"),
    ({"hn": "c", "p": "h"}, {}, r"output 'p' is \[1, 4\], and the input 'h' .* \[2, 1, 4\]"),
    (None, {}, r"'h', and no single output is its next value \(of its shape: cn, hn\); name it"),
    (None, {"gain": None}, "the data lacks the input 'gain', and no single output"),
    (PAIRS, {"gain": np.ones(3, np.float32)}, "recording 0 has steps {'x': 7, 'gain': 3}"),
    (PAIRS, {"x": draw(7, 5)}, "ONNX Runtime cannot run the file"),
)
def test_what_does_not_fit(states: Any, recording: Any, sentence: str, file: Path) -> None:
    values = dict(np.load(file.parent / "a.npz")) | recording
    data = [{n: a for n, a in values.items() if a is not None}]
    with pytest.raises(qtool.QtoolError, match=sentence):
        list(qtool.unroll_recordings(qtool.load_model(file), data, states))


def test_a_module_without_first_states() -> None:
    with pytest.raises(DataError, match=r"needs the float model as an nn.Module or an ONNX file"):
        qtool.unroll_recordings(None, [])
    with pytest.raises(DataError, match="the size of the state 'state' is not known"):
        list(qtool.unroll_recordings(Cell().eval(), [{"x": torch.randn(5, 3)}]))


@pytest.mark.parametrize("value", ["hn", "=h", "hn=", "auto=c"])
def test_what_is_no_pair(value: str, file: Path) -> None:
    line = ["quantize", str(file), "--data", str(file.parent), "-o", "x.onnx", "--state", "cn=c"]
    result = CliRunner().invoke(main, [*line, "--state", value])
    assert result.exit_code == 2
    assert "is not OUTPUT=INPUT" in result.stderr
