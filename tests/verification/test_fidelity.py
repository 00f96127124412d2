"""SQNR of an int8 model against the float one, and the layers that cost most."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.core.graph import clone
from qtool.simulation.costly_layers import costliest_layers
from qtool.verification.estimate import ESTIMATE, Estimate, OutputEstimate
from qtool.verification.fidelity import Fidelity, OutputSqnr, compare_outputs


class Undone(nn.Module):
    """Channels of very unlike size in the middle, which the last layer makes equal again."""

    def __init__(self, ratio: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = (
            nn.Conv2d(3, 8, 3),
            nn.Conv2d(8, 8, 3),
            nn.Conv2d(8, 4, 1),
        )
        sizes = torch.logspace(0, np.log10(ratio), 8)
        with torch.no_grad():
            for parameter in (self.middle.weight, self.middle.bias):
                parameter *= sizes.view(-1, *[1] * (parameter.dim() - 1))
            self.last.weight /= sizes.view(1, -1, 1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.last(torch.relu(self.middle(self.first(x))))}


DATA = torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def quantized(model: nn.Module, data: Any = (DATA,), **options: Any) -> qtool.QuantizedModel:
    """Convert with few recovery steps: figures are of any file."""
    return qtool.quantize(model, list(data), accuracy="fast", **options)


def test_a_network_that_keeps_its_values_is_not_warned_of(tmp_path: Path) -> None:
    model = quantized(Undone(1).eval())
    found = model.export(tmp_path / "good.onnx").fidelity
    ((name, db),) = found.outputs
    assert (name, found.samples, found.warning, found.costliest) == ("scores", 8, None, ())
    with torch.no_grad():
        real, coded = Undone(1).eval()(DATA)["scores"], model(DATA)["scores"]
    simulated = 10 * torch.log10(real.square().sum() / (real - coded).square().sum())
    assert db == pytest.approx(float(simulated), abs=0.5)  # dB; the runtime rounds otherwise
    ((_, planned),) = model.fidelity.outputs
    assert planned == pytest.approx(float(simulated), abs=1e-3)


def test_a_destroyed_network_is_warned_of_and_the_layer_named(tmp_path: Path) -> None:
    model = quantized(Undone(1e6).eval(), recipe={"recover": []})
    found = model.export(tmp_path / "bad.onnx")
    assert found.passed
    assert found.fidelity.worst < 5
    worst = [name for name, _ in found.fidelity.costliest]
    assert set(worst[:2]) == {"relu", "last"}  # the wide tensor, and the weights that undo it
    assert found.fidelity.warning in found.details()
    assert "output 'scores' below 20 dB" in found.fidelity.warning
    assert found.to_json()["fidelity"]["warning"] == found.fidelity.warning


def test_no_layer_is_named_whose_error_is_a_small_part_of_the_whole() -> None:
    """Errors of rounded weights show at no point, so that a bystander would lead."""
    model = quantized(Undone(1).eval(), recipe={"recover": []})
    graph, batch = replace(model.graph, module=model.module), model.sample
    assert costliest_layers(graph, model.plan, batch, model.reference)
    far = clone(model.reference.module)
    for parameter in far.parameters():
        parameter.data *= 2
    other = replace(model.reference, module=far)
    assert costliest_layers(graph, model.plan, batch, other) == ()


def test_only_nan_is_a_warning_and_never_no_noise() -> None:
    broken = np.full(3, np.nan, np.float32)
    fidelity = compare_outputs(1, ["y"], [broken], [broken])
    assert (fidelity.worst, fidelity.judged.sqnr_db) == (-200, -200)
    assert fidelity.warning == "warning: the float model gives only NaN or Inf in output 'y'"
    assert "no noise" not in str(fidelity)


@pytest.mark.parametrize(
    ("real", "coded", "db"),
    [
        ([3.0, 4.0], [3.0, 4.0], None),
        ([3.0, 4.0], [3.0, 4.5], 20.0),
        ([0.0, 0.0], [0.0, 1.0], -200.0),
        ([np.inf, 4.0, 3.0], [np.inf, 4.5, 3.0], 20.0),
        ([np.nan, 4.0, 3.0], [np.nan, 4.0, 3.0], None),
        ([1.0, 4.0, 3.0], [np.nan, 4.0, 3.0], -200.0),
        ([np.inf, 4.0, 3.0], [2.0, 4.0, 3.0], -200.0),
    ],
)
def test_by_hand(real: list[float], coded: list[float], db: float | None) -> None:
    a, b = np.array(real, np.float32), np.array(coded, np.float32)
    found = compare_outputs(1, ["y"], [a], [b])
    assert dict(found.outputs)["y"] == (None if db is None else pytest.approx(db))
    assert found.not_finite == (() if np.isfinite(a).all() else ("y",))


def test_only_the_worst_of_many_are_shown_in_the_order_of_the_model() -> None:
    outputs = tuple(OutputSqnr(f"o{i}", 40.0 - i) for i in range(9))
    text = str(Fidelity(4, outputs, Estimate(4, ESTIMATE, ())))
    assert text.splitlines()[0] == (
        "SQNR against the float model (4 samples): o5 35.0 dB, o6 34.0 dB, o7 33.0 dB, o8 32.0 dB "
        "and 5 more"
    )


def test_integers_have_no_noise() -> None:
    a = np.arange(3)
    assert compare_outputs(1, ["i"], [a], [a + 1]).outputs == ()


class Heads(nn.Module):
    """Boxes of hundreds beside scores up to one, in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.boxes, self.scores = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 2, 3)
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.boxes(x).relu() * 64, self.scores(x).sigmoid()], 1)


def test_what_is_joined_for_the_output_keeps_its_resolution(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 10, 10)
    model = quantized(Heads().eval())
    verified = model.export(tmp_path / "heads.onnx")
    joined = torch.from_numpy(run(session(tmp_path / "heads.onnx"), [x.numpy()])[0])
    boxes, scores = joined[:, :4], joined[:, 4:]
    real = Heads().eval()
    assert len(scores.unique()) > 50
    alone = quantized(Scores().eval())(x)  # the same scores, joined to nothing
    assert _noise(scores, real.scores(x).sigmoid()) < 1.26 * _noise(alone, real.scores(x).sigmoid())
    assert _noise(boxes, real.boxes(x).relu() * 64) < _noise(boxes * 0, boxes) / 1000
    assert verified.coverage.share == 1.0


def _noise(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).detach().square().mean())


class Scores(Heads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x).sigmoid()


def test_what_is_expected_to_be_low_is_warned_of() -> None:
    figures = OutputEstimate("y", 4.0, 3.0, 5.0, 3.5, 1.0)
    found = Fidelity(8, (OutputSqnr("y", 31.0),), Estimate(40, ESTIMATE, (figures,)))
    assert found.warning == "warning: output 'y' below 20 dB SQNR"
    assert found.worst == 4.0, "the figure that is shown is the one that goals judge"


def test_an_output_of_which_most_became_one_value_is_named() -> None:
    real = np.linspace(-1, 1, 200, dtype=np.float32)
    real[0] = 1e6
    found = compare_outputs(
        1, ["y", "mask"], [real, real * 0], [np.where(real > 9, real, 0), real * 0]
    )
    assert found.collapsed == (("y", 199 / 200),)
    assert "of output 'y' collapse into one" in str(found)
    assert compare_outputs(1, ["y"], [real], [real]).collapsed == ()


class Divides(nn.Module):
    """By scores of both signs, by the same far from zero, or by what no code is part of."""

    def __init__(self, by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.by = nn.Conv2d(3, 4, 3), by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        by = {"scores": y, "square": y.square() + 1, "input": x[:, :1, 1:-1, 1:-1]}
        return {"power": (y - y.mean()) ** -1.0, "tan": 4 * y.tan()}.get(
            self.by, y / by.get(self.by, 1)
        )


@pytest.mark.parametrize(
    ("by", "named"), [("scores", 1), ("power", 1), ("tan", 1), ("square", 0), ("input", 0)]
)
def test_a_division_by_what_noise_may_take_through_zero_is_named(by: str, named: int) -> None:
    found = quantized(Divides(by).eval()).fidelity
    assert len(found.near_zero_divisions) == named
    assert ("divides by values near zero" in str(found)) == bool(named)


def test_what_is_expected_comes_from_samples_that_nothing_in_the_file_was_made_of(
    tmp_path: Path,
) -> None:
    data = torch.randn(160, 3, 10, 10, generator=torch.Generator().manual_seed(2))
    new = torch.randn(256, 3, 10, 10, generator=torch.Generator().manual_seed(3))
    for accuracy in ("fast", "balanced"):
        model = qtool.quantize(Undone(1).eval(), data.split(32), accuracy=accuracy)
        result = model.export(tmp_path / "m.onnx")
        found = result.fidelity.estimate
        assert found.kind == ESTIMATE
        assert 20 <= found.samples <= 45
        (coded,) = run(session(tmp_path / "m.onnx"), [new.numpy()])
        with torch.no_grad():
            real = Undone(1).eval()(new)["scores"].numpy()
        power = [np.square(each).reshape(256, -1).sum(1) for each in (real, real - coded)]
        truth = float(np.median(10 * np.log10(power[0] / power[1])))
        low, high = found.interval_db
        assert low - 0.5 <= truth <= high + 0.5
        assert high - low < 2
        pooled = 10 * np.log10(power[0].sum() / power[1].sum())
        assert found.pooled_db == pytest.approx(pooled, abs=1)
        assert f"median of {found.samples} held-out samples" in str(result.summary())
        simulated = model.fidelity.estimate  # without a file
        assert simulated.median_db == pytest.approx(found.median_db, abs=0.5)


def test_too_few_samples_are_called_calibration_samples() -> None:
    model = quantized(Undone(1).eval(), DATA.split(4))
    assert "(median of 8 calibration samples, " in model.fidelity.row()[1]
