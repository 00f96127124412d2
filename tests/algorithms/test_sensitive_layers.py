"""Layers that make most of the error compute in float; good networks stay in integers."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.algorithms import sensitive_layers
from qtool.algorithms.conversion_state import LESS_ACCURATE, ConversionState
from qtool.algorithms.sensitive_layers import BUDGET
from qtool.evaluation.restored_model import restore
from qtool.frontends.captured_model import Captured
from qtool.planning.plan import Execution
from tests.algorithms.search_cost import measured_sources

OUTLIER = 3000.0
NOTE = "in float, for most of the error was theirs"


class Stem(nn.Module):
    """A stem whose result has one channel with rare large values, before layers with all the work.

    The channel is subtracted again, so the rest of the network hardly sees it.
    """

    def __init__(self, outlier: float = OUTLIER) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.mix = nn.Conv2d(8, 8, 1)
        self.body = nn.Sequential(
            nn.Conv2d(8, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Conv2d(48, 4, 1)
        with torch.no_grad():
            self.stem.weight[5] *= outlier
            self.mix.weight[:, 5] /= outlier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(self.mix(self.stem(x))))
        return result


def images(seed: int, samples: int = 24) -> torch.Tensor:
    return torch.randn(samples, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


@functools.cache
def captured(outlier: float = OUTLIER) -> Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Stem(outlier).eval(), images(0))


def quantized(outlier: float = OUTLIER, **options: Any) -> QuantizedModel:
    # equalization would move the factor into the neighbour: this is about what it cannot move
    options = {"recover": ["sensitive-layers"], **options}
    return qtool.quantize(captured(outlier), [images(i) for i in range(3)], **options)


def in_float(model: QuantizedModel) -> set[str]:
    return {d.node for d in model.plan.nodes if d.macs and d.execution is not Execution.INTEGER}


def sqnr(model: QuantizedModel, path: Path) -> float:
    """Return the SQNR in dB of the file in ONNX Runtime, on new data."""
    model.export(path)
    x = images(9)
    with torch.no_grad():
        exact = captured().graph.module(x).numpy()
    coded = ort.InferenceSession(path).run(None, {"x": x.numpy()})[0]
    return float(10 * np.log10((exact**2).sum() / ((exact - coded) ** 2).sum()))


def test_layers_around_the_tensor_that_loses_most_compute_in_float(tmp_path: Path) -> None:
    plain, model = quantized(recover=[]), quantized()
    assert in_float(plain) == set()
    assert in_float(model) == {"stem", "mix"}
    assert sqnr(plain, tmp_path / "plain.onnx") < 15
    assert sqnr(model, tmp_path / "model.onnx") > 30
    assert any(NOTE in note and "mix, stem" in note for note in model.notes)


class Counts(nn.Module):
    """A layer on raw counts, most of which a normalisation takes away again, before the work."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.body = nn.Sequential(
            nn.ReLU(), nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 16, 3, padding=1)
        )
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        self.norm.running_mean.fill_(1000.0)
        self.norm.running_var.fill_(900.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(self.first(self.norm(x)))
        return result


@pytest.mark.parametrize(("target", "expected"), [("onnxruntime", {"norm"}), ("openvino", set())])
def test_the_input_that_makes_most_of_a_smaller_error_stays_float_where_costs_are_known(
    target: str, expected: set[str]
) -> None:
    torch.manual_seed(0)
    data = [1000 + 30 * torch.randn(24, 1, 12, 12) for _ in range(3)]
    plain, model = (
        qtool.quantize(Counts().eval(), data, recover=recover, target=target)
        for recover in ([], ["sensitive-layers"])
    )
    assert in_float(plain) == set()
    assert in_float(model) == expected


def test_groups_of_small_error_are_measured_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    data = [1000 + 30 * torch.randn(24, 1, 12, 12) for _ in range(3)]
    network = Counts()
    for _ in range(12):  # layers that add little error
        layer = nn.Conv2d(16, 16, 3, padding=1)
        nn.init.dirac_(layer.weight)
        network.body.extend([nn.Tanh(), layer])
    network.eval()
    many, same = measured_sources(monkeypatch, network, data, GROUPS=())
    few, worst = measured_sources(monkeypatch, network, data)
    assert worst == same != []
    assert few < many


class Pooled(nn.Module):
    """A first layer on raw counts, whose weights take their level away; behind it a pool."""

    def __init__(self, *pool: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3)
        last = nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 16, 3, padding=1)
        self.rest = nn.Sequential(nn.ReLU(), *pool, *last)
        assert self.first.bias is not None
        with torch.no_grad():
            self.first.bias -= 1000 / 30 * self.first.weight.sum((1, 2, 3))
            self.first.weight /= 30

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.rest(self.first(x))
        return result


@pytest.mark.parametrize("pool", [(), (nn.MaxPool2d(2),)], ids=["plain", "pool"])
def test_a_first_layer_on_raw_counts_stays_float(pool: tuple[nn.Module, ...]) -> None:
    """Its weights make most of the error, and behind the pool is a tensor that had no range."""
    torch.manual_seed(0)
    data = [1000 + 30 * torch.randn(24, 1, 18, 18) for _ in range(3)]
    network = Pooled(*pool).eval()
    model = qtool.quantize(network, data, recover=["sensitive-layers"])
    assert in_float(model) == {"first"}
    with torch.no_grad():
        exact, coded = network(data[0]), model(data[0])
    assert (exact - coded).square().sum() < 0.003 * exact.var(0).sum() * len(exact)


class Level(nn.Module):
    """A network on raw counts whose result has a large offset, as levels in decibels have."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Counts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.network(x) + 50
        return result


def test_an_offset_of_the_result_hides_no_error() -> None:
    torch.manual_seed(0)
    data = [1000 + 30 * torch.randn(24, 1, 12, 12) for _ in range(3)]
    model = qtool.quantize(Level().eval(), data, recover=["sensitive-layers"])
    assert in_float(model) == {"network.norm"}


class Labels(nn.Module):
    """A network that gives the best classes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = Stem()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x).argmax(1)


def test_first_samples_without_an_error_choose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors are measured on two samples, on which a rare event may not show."""
    monkeypatch.setattr(
        sensitive_layers, "errors_alone", lambda *arguments: [0.0] * len(arguments[3])
    )
    model = quantized()
    assert (in_float(model), model.notes) == (set(), ())  # no note that the step failed


def test_classes_are_judged_by_the_scores_they_come_from() -> None:
    torch.manual_seed(0)
    data = [images(i) for i in range(3)]
    model = qtool.quantize(Labels().eval(), data, recover=["sensitive-layers"])
    assert in_float(model) == {"scores.stem", "scores.mix"}


def test_the_file_holds_the_recipe_and_reads_back(tmp_path: Path) -> None:
    model = quantized()
    checked = model.export(tmp_path / "model.onnx")
    assert checked is not None
    read = restore(tmp_path / "model.onnx", captured(), model.sample)
    assert read.plan == model.plan
    assert [(r.select, r.scheme) for r in read.plan.recipe.rules] == [
        ("mix", "float"),  # its weights are a source, too: one column is tiny
        ("stem", "int8-weights"),  # codes, for a kernel in float
    ]


def test_work_in_float_stays_within_the_budget() -> None:
    model = quantized()
    work = {d.node: d.macs for d in model.plan.nodes}
    assert 0 < sum(work[n] for n in in_float(model)) <= BUDGET * sum(work.values())


def test_a_large_layer_keeps_codes_where_the_error_is_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sensitive_layers, "BUDGET", 1.0)
    monkeypatch.setattr(sensitive_layers, "SLOWER", 9.0)
    example = torch.zeros(2, 1, 12, 12)
    network = qtool.capture_model(Counts().eval(), example)
    calibration = qtool.calibrate(network, [1000 + example])
    state = ConversionState.start(network, network.plan(), calibration).solved()
    allows = sensitive_layers._budget(sensitive_layers._Network(state), poor=False)
    last = frozenset({"body.3"})
    assert allows(sensitive_layers._Choice(last), state.plan)
    assert not allows(sensitive_layers._Choice(last, weights=last), state.plan)


def test_a_choice_without_a_gain_on_few_batches_runs_on_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a large network a batch is one sample."""
    monkeypatch.setattr(sensitive_layers, "MEMORY", 0)
    network, data = captured(), [images(i) for i in range(3)]
    calibration = qtool.calibrate(network, data)
    state = ConversionState.start(network, network.plan(), calibration).solved()
    measured = sensitive_layers._Network(state)
    points = measured.run.points
    few, whole = measured.error(points)
    assert 0 < whole < math.inf
    assert measured.error(points, few) == (few, whole)
    runs = list[int]()
    values = sensitive_layers._Network._values

    def counted(self: Any, *arguments: Any) -> Any:
        runs.append(1)
        return values(self, *arguments)

    monkeypatch.setattr(sensitive_layers._Network, "_values", counted)
    assert measured.error(points, few / 2) == (few, math.inf)
    assert len(runs) == sensitive_layers.FEW < len(measured.batches)


def test_a_good_network_stays_in_integers() -> None:
    assert in_float(quantized(outlier=1.0)) == set()


@pytest.mark.parametrize(
    "recipe",
    [
        {"slow_layers": "integer"},
        {"rules": [{"select": "stem", "as": "static"}]},  # explicit, so the tensor keeps its codes
    ],
)
def test_a_recipe_decides(recipe: dict[str, Any]) -> None:
    assert "stem" not in in_float(quantized(recipe=recipe))


def test_it_runs_by_default_and_not_where_other_steps_are_named() -> None:
    assert "stem" in in_float(quantized(recover=None, accuracy="fast"))
    assert in_float(quantized(recover=["bias-correction"])) == set()


class Spectrum(nn.Module):
    """A recurrent layer behind a spectrum: a few of its inputs are much larger than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(24, 16, batch_first=True)
        self.head = nn.Linear(16, 5)
        with torch.no_grad():
            self.lstm.get_parameter("weight_ih_l0")[:, ::2] *= 3e3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.lstm(x)[0])
        return result


def test_weights_of_a_recurrent_layer_are_floats_where_their_codes_lose_most() -> None:
    torch.manual_seed(1)
    x = torch.randn(48, 9, 24)
    x[..., ::2] /= 3e4
    options: dict[str, Any] = {"mode": "static", "recover": ["sensitive-layers"]}
    model = qtool.quantize(Spectrum().eval(), [x], **options)
    decision = model.plan.decision("lstm")
    assert decision.execution is Execution.FLOAT
    assert any(NOTE in note for note in model.notes)


def test_names_with_characters_of_globs_select_themselves() -> None:
    class Bracket(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("a[0]", Stem())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.get_submodule("a[0]")(x)
            return result

    torch.manual_seed(0)
    data = [images(i) for i in range(3)]
    model = qtool.quantize(Bracket().eval(), data, recover=["sensitive-layers"])
    assert {name.rpartition(".")[2] for name in in_float(model)} == {"stem", "mix"}


def test_held_out_samples_judge_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitive_layers, "best_candidate", lambda *_: None)
    model = quantized()
    assert in_float(model) == set()
    assert f"sensitive-layers: {LESS_ACCURATE}" in model.notes
