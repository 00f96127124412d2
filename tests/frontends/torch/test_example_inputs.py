"""What a module is called with, and what it keeps between calls."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.torch.example_inputs import AddedSizes, sizes_of
from qtool.frontends.torch.export_module import capture_module
from tests.backends.onnx.export.networks import run
from tests.named_cases import cases


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.a(x) - self.b(y)


class Named(Two):
    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return self.a(x) - sum(self.b(y) for y in others.values())


def test_one_tensor_for_two_inputs(tmp_path: Path) -> None:
    """To torch.export it is one input, and the other is never read."""
    x = torch.randn(16, 4)
    model = Two().eval()
    qtool.quantize(model, [(x, x)], accuracy="fast").export(tmp_path / "m.onnx")
    a, b = torch.randn(5, 4).clamp(-1, 1), torch.randn(5, 4).clamp(-1, 1)
    found = run(onnx.load(tmp_path / "m.onnx"), [a, b])[0]
    assert found == pytest.approx(model(a, b).detach().numpy(), abs=0.1)


def test_inputs_without_names_in_forward() -> None:
    given = {"x": torch.randn(8, 4), "u": torch.randn(8, 4), "v": torch.randn(8, 4)}
    model = Named().eval()
    graph = capture_module(model, Batch((), given))
    assert [str(i) for i in graph.inputs] == [f"{n}: float32[batch, 4]" for n in given]
    assert "forward" not in vars(model)


class Keeps(nn.Module):
    """Makes a mask at its first call, and may count its calls."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.counts, self.calls, self.seen = nn.Linear(4, 3), counts, 0, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "mask"):
            self.mask = torch.tensor([1.0, 0.0, 2.0])
        self.calls += 1
        self.seen.append(x)
        return self.l(x) * self.mask * (self.calls if self.counts else 1)


def test_what_a_model_keeps_is_as_it_was() -> None:
    model, x = Keeps().eval(), torch.randn(8, 4)
    graph = capture_module(model, Batch((x,)))
    assert (model.calls, model.seen, hasattr(model, "mask")) == (0, [], False)
    assert torch.equal(graph.module(x), model(x))


def test_a_model_that_counts_is_no_function() -> None:
    with pytest.raises(CaptureError, match="changes between calls"):
        capture_module(Keeps(counts=True).eval(), Batch((torch.randn(8, 4),)))


class ByNumber(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.how = nn.Linear(4, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self.l(x))


def test_a_number_of_samples_that_the_model_fixes(tmp_path: Path) -> None:
    model = ByNumber(lambda y: y * float(y.shape[0])).eval()
    quantized = qtool.quantize(model, [torch.randn(16, 4)], accuracy="fast")
    assert any("takes only 16" in note for note in quantized.notes)
    quantized.export(tmp_path / "m.onnx")
    shape = onnx.load(tmp_path / "m.onnx").graph.input[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [16, 4]


def test_a_number_of_samples_that_the_model_decides_by(tmp_path: Path) -> None:
    model = ByNumber(lambda y: y.relu() if y.shape[0] > 10 else y).eval()
    quantized = qtool.quantize(model, [torch.randn(16, 4)], accuracy="fast")
    assert any("valid from 11 samples on" in note for note in quantized.notes)
    assert quantized.export(tmp_path / "m.onnx").passed
    few = qtool.quantize(model, [torch.randn(8, 4)], accuracy="fast")
    assert any("2 to 10 samples" in note for note in few.notes)


def test_nothing_is_said_of_other_sizes() -> None:
    found = qtool.quantize(ByNumber(torch.relu).eval(), [torch.randn(16, 4)], accuracy="fast")
    assert [n for n in found.notes if "calibrated on" not in n] == []


def test_a_layer_called_graph() -> None:
    """As what every module of a graph has itself."""
    model = nn.Sequential()
    model.add_module("graph", nn.Linear(4, 3))
    graph = capture_module(model.eval(), Batch((torch.randn(8, 4),)))
    assert [G.name_of(n) for n in G.calls(graph.graph)] == ["graph"]
    assert graph.module(torch.randn(8, 4)).shape == (8, 3)


def test_classes_are_compared(tmp_path: Path) -> None:
    """A model that gives classes is said to give others, too."""
    model = ByNumber(lambda y: (y * 1e3).sin().argmax(1)).eval()
    found = qtool.quantize(model, [torch.randn(64, 4)], accuracy="fast").export(tmp_path / "m.onnx")
    first, *_ = found.fidelity.estimate.agreements
    assert first.output == "output"
    assert (first.kind, str(first)) == ("equal", f"{100 * first.value:.1f} % equal")
    assert "output 'output' is hardly of use" in str(found.fidelity.warning)
    assert np.isinf(found.fidelity.worst)


class Optional(Two):
    def forward(
        self, x: torch.Tensor, y: torch.Tensor | None = None, shift: torch.Tensor | None = None
    ) -> torch.Tensor:
        z = self.a(x) if y is None else self.a(x) - self.b(y)
        return z if shift is None else z + shift


@pytest.mark.parametrize("by_name", [False, True])
def test_arguments_that_are_none_stay_out_of_the_file(by_name: bool, tmp_path: Path) -> None:
    model, (x, shift) = Optional().eval(), (torch.randn(16, 4), torch.randn(16, 3))
    batch: Any = {"x": x, "y": None, "shift": shift} if by_name else (x, None, shift)
    made = qtool.quantize(model, [batch], accuracy="fast")
    assert made.export(tmp_path / "model.onnx").passed
    file = onnx.load(tmp_path / "model.onnx")
    assert [i.name for i in file.graph.input] == ["x", "shift"]
    (found,) = run(file, (x, shift))
    real = model(x, None, shift).detach().numpy()
    assert np.abs(found - real).max() < 0.05 * np.ptp(real)
    assert qtool.evaluate(tmp_path / "model.onnx", model, [batch]).accuracy.samples == 16


def test_other_arguments_than_at_capture_are_refused() -> None:
    x, shift = torch.randn(16, 4), torch.randn(16, 3)
    captured = qtool.capture_model(Optional().eval(), (x, None, shift))
    with pytest.raises(qtool.DataError, match=r"batch 0 has None for other arguments"):
        qtool.calibrate(captured, [(x, x, None)])


@cases(
    "name, expected",
    ("ids", {0: "batch"}),
    ("past.0.encoder.key", {2: "encoded"}),
    ("past.1.decoder.key", {2: "past"}),
    ("past.1.other", {}),
)
def test_sizes_of_nested_inputs(name: str, expected: dict[int, str]) -> None:
    dynamic = {"ids": {0: "batch"}, "past.encoder": {2: "encoded"}, "past.decoder": {2: "past"}}
    assert sizes_of(name, dynamic) == expected


def test_added_dimensions_keep_the_batch_dynamic() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.mean(2) + y

    example = {"x": torch.randn(1, 3, 8), "y": torch.randn(1, 3)}
    graph = qtool.capture_model(Two().eval(), example, AddedSizes({"x": {2: "length"}})).graph
    assert [i.shape for i in graph.inputs] == [("batch", 3, "length"), ("batch", 3)]


def test_a_batch_that_the_model_fixes_is_no_error_with_added_dimensions() -> None:
    model = ByNumber(lambda y: y * float(y.shape[0])).eval()
    added = AddedSizes({"x": {1: "time"}})
    quantized = qtool.quantize(model, [{"x": torch.randn(8, 6, 4)}], dynamic=added, accuracy="fast")
    assert quantized.graph.inputs[0].shape == (8, "time", 4)
    assert any("takes only 8" in note for note in quantized.notes)
