"""The step `learned-scales`: nearer to the float network on new data, and kept only where it is."""

import functools
import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.conversion_state import LESS_ACCURATE
from qtool.algorithms.learned_scales import training
from qtool.calibration.solve_parameters import BIAS_LIMIT
from qtool.core.progress import show_progress
from tests.algorithms.restored import check_restored

FOUR_BITS = [{"op": "conv", "weights": "int4"}]
FEW_ROUNDS = 60


class Net(nn.Module):
    """A residual block, whose sum shares nothing, and outputs with a long tail."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.body = nn.Conv2d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.stem(x))
        h = torch.relu(h + self.body(h))
        return self.head(h.mean((2, 3)))


def images(seed: int, count: int = 96) -> torch.Tensor:
    """Images of which some few values are far beyond the others: extremes make a poor range."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 12, 12, generator=generator).pow(3)


@functools.cache
def captured() -> qtool.Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Net().eval(), images(1)[:8])


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_STEPS", FEW_ROUNDS)


def made(recipe: Any, *recover: str) -> qtool.QuantizedModel:
    data, target = list(images(1).split(16)), "onnxruntime-x86-vnni"  # weights use all 8 bits
    return qtool.quantize(captured(), data, recipe=recipe, recover=recover, target=target)


def sqnr(model: qtool.QuantizedModel) -> float:
    x = images(2, 1024)  # of fewer a few that are clipped decide
    with torch.no_grad():
        exact, found = captured().graph.module(x), model(x)
    return float(10 * torch.log10(exact.square().sum() / (exact - found).square().sum()))


@pytest.mark.parametrize(("recipe", "gain"), [(None, 0.3), (FOUR_BITS, 2.0)])
def test_results_on_new_data_are_nearer(recipe: Any, gain: float) -> None:
    assert sqnr(made(recipe, "learned-scales")) > sqnr(made(recipe)) + gain


def test_the_file_holds_what_was_learned(tmp_path: Path) -> None:
    model = made(FOUR_BITS, "learned-scales")
    (change,) = [r for r in model.plan.rewrites if r.name == "learned-scales"]
    assert change.count > 4
    check_restored(model, captured(), images(3), tmp_path / "m.onnx")


def test_weights_of_8_bits_are_left_alone() -> None:
    plain, learned = made(None), made(None, "learned-scales")
    for name, value in plain.graph.module.state_dict().items():
        same = torch.equal(learned.graph.module.state_dict()[name], value)
        assert same == (value.dim() != 1)  # biases are learned
    differs = [
        n for n, p in plain.parameters.items() if p.scale.ne(learned.parameters[n].scale).any()
    ]
    assert differs
    assert not [n for n in differs if n.endswith(".weight")]


def test_what_is_further_on_samples_kept_aside_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "RATES", {"scales": 3.0, "weights": 3.0, "biases": 3.0})
    monkeypatch.setattr(training, "MAX_STEPS", 3)
    model = made(None, "learned-scales")
    assert f"learned-scales: {LESS_ACCURATE}" in model.notes
    plain = made(None)
    for name, params in plain.parameters.items():
        assert torch.equal(model.parameters[name].scale, params.scale)


def raising(error: type[BaseException], after: int) -> Any:
    """A display that ends the work called learning after so many rounds."""

    def display(title: str, total: int | None) -> Any:
        rounds = itertools.count(1)

        def advance() -> None:
            if title == "learning" and next(rounds) == after:
                raise error

        return nullcontext(advance)

    return display


class Ended(KeyboardInterrupt):
    """As the command line makes one of SIGTERM."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Ended])
def test_an_interrupt_ends_the_conversion(error: type[BaseException]) -> None:
    """Who presses Ctrl-C wants no model that learned half of what it was asked to."""
    with pytest.raises(error), show_progress(raising(error, 2)):
        made(None, "learned-scales")


class Shared(Net):
    """One parameter under two names, and one that the network does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.alias, self.unused = self.body.weight, nn.Parameter(torch.ones(2))
        self.stem.bias.requires_grad_(False)  # frozen by its user


def _state(net: nn.Module) -> list[tuple[str, int, bool, bool]]:
    named = net.named_parameters(remove_duplicate=False)
    return [(name, id(p), p.requires_grad, p.grad is None) for name, p in named]


@pytest.mark.parametrize("recipe", [None, FOUR_BITS], ids=["8 bits", "4 bits"])
@pytest.mark.parametrize("ended", [False, True], ids=["to the end", "interrupted"])
def test_the_parameters_of_the_user_stay_trainable(recipe: Any, ended: bool) -> None:
    net = Shared().eval()
    before = _state(net)
    display = show_progress(raising(KeyboardInterrupt, 2)) if ended else nullcontext()
    with pytest.raises(KeyboardInterrupt) if ended else nullcontext(), display:
        qtool.quantize(net, [images(1)], recipe=recipe, recover=["learned-scales"])
    assert _state(net) == before


def test_a_loss_that_is_no_number_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = training.relative_error, []

    def broken(*given: Any) -> torch.Tensor:
        calls.append(given)
        return whole(*given) * (float("nan") if len(calls) > 20 else 1.0)

    monkeypatch.setattr(training, "relative_error", broken)
    model = made(FOUR_BITS, "learned-scales")
    assert f"learned-scales: {training.NOT_FINITE.format(20, FEW_ROUNDS)}" in model.notes
    assert sqnr(model) > sqnr(made(FOUR_BITS))


def test_no_gradient_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(module: nn.Module, batch: Any) -> list[torch.Tensor]:
        return [t.detach() for t in all_outputs(module, batch)]

    all_outputs = training.float_outputs
    monkeypatch.setattr(training, "float_outputs", cut)
    notes = made(None, "learned-scales").notes
    assert any(n.startswith("learned-scales: skipped, since this network") for n in notes)


def test_the_presets_take_it_at_best_alone() -> None:
    data = list(images(1, 32).split(16))
    names = {
        accuracy: {
            r.name for r in qtool.quantize(captured(), data, accuracy=accuracy).plan.rewrites
        }
        for accuracy in ("balanced", "best")
    }
    assert "learned-scales" not in names["balanced"]
    assert names["best"] - names["balanced"] <= {"learned-scales"}


def test_a_scale_that_a_bias_needs_stays() -> None:
    """A bias may use half of an accumulator; a smaller scale of the input would make it more."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten()).eval()
    with torch.no_grad():
        net[0].weight.mul_(1e-9)  # so small that the scale of weights is the bias's
    x = images(1)
    model = qtool.quantize(net, list(x.split(16)), recover=["learned-scales"])
    plain = qtool.quantize(net, list(x.split(16)))
    pair = (each.parameters["input"].scale for each in (model, plain))
    torch.testing.assert_close(*pair, rtol=1e-6, atol=0)  # what a float32 bias can tell apart
    assert not torch.equal(model.parameters["1"].scale, plain.parameters["1"].scale)
    bias = model.graph.module.get_parameter("0.bias").detach()
    assert float((bias.abs() / model.parameters["0.bias"].scale).max()) <= BIAS_LIMIT
