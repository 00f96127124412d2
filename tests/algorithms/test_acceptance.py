"""Which candidates of a step are accepted, and the samples that judge them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms import acceptance
from qtool.algorithms.acceptance import (
    best_candidate,
    error_ratios,
    output_noise,
    quantized_module,
    relative_error,
)
from qtool.algorithms.conversion_state import LESS_ACCURATE, ConversionState
from qtool.algorithms.next_token_loss import float_outputs
from qtool.algorithms.pipeline import Step, run_step
from qtool.algorithms.registry import STEPS, register_step
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.types import Change
from qtool.planning.recipe import Recipe


class Two(nn.Module):
    """A large output, a small one, and one that is no float."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x * 1000, x / 1000, x.argmax(1)


class Off(nn.Module):
    """The same with a tenth too much in both."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x * 1100, x / 1000 * 1.1, x.argmax(1)


def test_each_output_counts_by_its_own_power() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    exact, found = float_outputs(Two(), Batch((x,))), float_outputs(Off(), Batch((x,)))
    assert float(relative_error(exact, found)) == pytest.approx(2 * 0.01, rel=1e-4)
    assert float(relative_error(exact, exact)) == 0


def test_an_output_of_zeros_is_no_number_less() -> None:
    zeros = [torch.zeros(3)]
    assert bool(relative_error(zeros, zeros).isfinite())


def test_noise_is_added_up_over_batches() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).eval()
    x = torch.randn(32, 4)
    captured = qtool.capture_model(net, x)
    calibration = qtool.calibrate(captured, [x])
    start = ConversionState.start(captured, captured.plan(), calibration)
    state = start.solved()
    module = quantized_module(state)
    whole = float(output_noise(state, [module], [Batch((x,))])[0].sum())
    parts = float(output_noise(state, [module], [Batch((p,)) for p in x.split(5)])[0].sum())
    with torch.no_grad():
        exact, found = net(x).double(), module(x)
    by_hand = (exact - found).square().sum() / exact.square().sum()
    assert whole == pytest.approx(float(by_hand), rel=1e-6)  # summed in another order
    # A product of 5 rows may round otherwise than one of 32: by an eps of the values, which are
    # noise ** -0.5 times as large as their errors.
    rounding = 2 * torch.finfo(torch.float32).eps / whole**0.5
    assert parts == pytest.approx(whole, rel=rounding)
    assert not output_noise(state, [captured.graph.module], [Batch((x,))])[0].any()
    samples, halves = (
        output_noise(state, [module], [Batch((p,)) for p in x.split(n)])[0] for n in (32, 16)
    )
    each = (exact - found).square().sum(1) / exact.square().sum()
    assert torch.allclose(samples, each, rtol=1e-6)
    assert torch.allclose(halves, each, rtol=rounding)


@pytest.mark.parametrize(("width", "counted"), [(4, 4), (1, 32)], ids=["mixed", "one number"])
def test_flat_outputs_count_by_sample_where_each_has_one_number(width: int, counted: int) -> None:
    """Four batches of 8 samples; else they count by the batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, width), nn.Flatten(0)).eval()
    x = torch.randn(32, 4)
    captured = qtool.capture_model(net, x)
    start = ConversionState.start(captured, captured.plan(), qtool.calibrate(captured, [x]))
    state = start.solved()
    (found,) = output_noise(
        state, [quantized_module(state)], [Batch((part,)) for part in x.split(8)]
    )
    assert found.shape == (counted,)


def test_what_one_plan_has_shown_is_not_taken_for_another() -> None:
    """Their points hold the same scales: those of activations are dynamic, or there are none."""
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    captured = qtool.capture_model(nn.Linear(4, 3).eval(), x)
    calibration = qtool.calibrate(captured, [x], mode="dynamic", accuracy="fast")
    noise = []
    for mode in ("dynamic", "weight-only"):
        start = ConversionState.start(
            captured, captured.plan(recipe=Recipe(mode=mode)), calibration
        )
        state = start.solved()
        noise += output_noise(state, [quantized_module(state)], [Batch((x,))])
    noise = [float(each.sum()) for each in noise]
    assert noise[1] < 0.7 * noise[0]


def test_ranks_share_the_same_task_on_the_same_networks() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    captured = qtool.capture_model(nn.Linear(4, 3).eval(), x)
    calibration = qtool.calibrate(captured, [x])
    start = ConversionState.start(captured, captured.plan(), calibration)
    state = start.solved()
    tasks = [("gptq", []), ("judge", []), ("judge", [quantized_module(state)])]
    marks = [acceptance._task_fingerprint(each, *task) for each in (start, state) for task in tasks]
    assert len(set(marks)) == 6
    assert acceptance._task_fingerprint(state, "judge", [quantized_module(state)]) == marks[-1]


def test_one_sample_far_off_does_not_decide() -> None:
    before, after = torch.ones(64), torch.full((64,), 0.8)
    after[0] = 30
    assert after.sum() > before.sum()
    assert error_ratios(before, after).mean() < -0.1
    assert not error_ratios(before, before).any()
    assert not error_ratios(torch.zeros(4), torch.zeros(4)).any()
    assert 0 < error_ratios(torch.zeros(4), torch.ones(4)).mean() < 10


@pytest.mark.parametrize(
    ("apart", "samples", "runs"),
    [(0.5, 64, [16]), (0.3, 64, [16, 16]), (0.001, 64, [16, 16, 16]), (0.5, 7, [7])],
)
def test_a_quarter_of_the_samples_judges_where_it_can_tell(
    apart: float, samples: int, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    captured = qtool.capture_model(nn.Linear(4, 3).eval(), x)
    calibration = qtool.calibrate(captured, [x], recover=["gptq"])
    state = ConversionState.start(captured, captured.plan(), calibration).solved()
    seen: list[int] = []

    def noise(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        batches: list[Batch] = arguments[2]
        seen.append(sum(b.size for b in batches))
        before = torch.linspace(1, 2, seen[-1])
        return before, before.flip(0) * (1 + apart)

    monkeypatch.setattr("qtool.algorithms.acceptance.output_noise", noise)
    assert best_candidate(state, [state], samples) is None
    assert seen == runs


def test_no_more_samples_run_than_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    captured = qtool.capture_model(nn.Linear(4, 3).eval(), x)
    calibration = qtool.calibrate(captured, [x], recover=["gptq"])
    state = ConversionState.start(captured, captured.plan(), calibration)
    monkeypatch.setattr(acceptance, "_is_conclusive", lambda _: True)
    best_candidate(state, [state.solved()], 64)
    assert len(calibration.kept_samples.cache) == 1  # a batch of one network, as both are equal


def test_networks_that_run_again_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    captured = qtool.capture_model(nn.Linear(4, 3).eval(), x)
    calibration = qtool.calibrate(captured, [x], recover=["gptq"])
    state = ConversionState.start(captured, captured.plan(), calibration)
    made = list[object]()

    class Counted(Executor):
        def __init__(self, graph: FloatGraph, device: torch.device) -> None:
            made.append(graph)
            super().__init__(graph, device=device)

    monkeypatch.setattr(acceptance, "Executor", Counted)
    monkeypatch.setattr(acceptance, "_is_conclusive", lambda _: False)
    best_candidate(state, [state.solved()], 64)
    assert len(made) == 1  # equal networks, in three parts


def test_parameters_are_solved_once_for_a_module_and_its_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    captured = qtool.capture_model(nn.Linear(4, 3).eval(), x)
    calibration = qtool.calibrate(captured, [x], recover=["gptq"])
    state = ConversionState.start(captured, captured.plan(), calibration)
    first = state.solved().parameters
    assert first is not None
    noted = state.with_notes("a note").solved().parameters
    assert noted.params is first.params
    assert noted.notes == (*first.notes, "a note")
    other = replace(calibration, statistics=dict(calibration.statistics))
    again = replace(state, calibration=other).solved().parameters
    assert again.params is not first.params


Proposal = ConversionState | list[ConversionState]


class Halves(nn.Module):
    """Takes no batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(half) for half in x.chunk(2)])


def samples() -> torch.Tensor:
    return torch.randn(40, 8, generator=torch.Generator().manual_seed(0))


def scaled(state: ConversionState, factor: float) -> ConversionState:
    """The state with other weight scales: larger ones lose bits, smaller ones clip."""
    solved = state.solved()
    assert solved.parameters is not None
    params = {
        name: replace(p, scale=p.scale * factor) if name.endswith(".weight") else p
        for name, p in solved.parameters.params.items()
    }
    parameters = replace(solved.parameters, params=params)
    return replace(solved, parameters=parameters).with_change(Change("mine", 1, f"x {factor:g}"))


def propose(*factors: float) -> Callable[[ConversionState], Proposal]:
    def run(state: ConversionState) -> Proposal:
        candidates = [scaled(state, factor) for factor in factors]
        return candidates if len(candidates) > 1 else candidates[0]

    return run


@pytest.fixture
def register() -> Iterator[Callable[[Step], None]]:
    before = list(STEPS)
    yield lambda step: register_step(step, before=None)
    STEPS[:] = before


def quantized() -> qtool.QuantizedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    return qtool.quantize(net, [samples()], accuracy="fast")


def test_a_network_that_takes_no_single_sample_goes_through() -> None:
    data = torch.randn(13, 8, generator=torch.Generator().manual_seed(0))
    model = qtool.quantize(Halves().eval(), [data])
    assert not [n for n in model.notes if "failed" in n]
    assert [change.step for change in model.changes] == ["gptq"]


@pytest.mark.parametrize(
    ("error", "said"), [(RuntimeError("it went\nwrong"), "it went"), (IndexError(), "IndexError")]
)
def test_an_optional_step_that_fails_is_skipped(
    error: Exception, said: str, register: Callable[[Step], None]
) -> None:
    def fail(state: ConversionState) -> ConversionState:
        raise error

    register(Step("mine", fail, samples=40, optional=True))
    model = quantized()
    assert f"mine: skipped after a failure ({said})" in model.notes
    assert "mine" not in [c.step for c in model.changes]
    with pytest.raises(type(error)):
        run_step(Step("mine", fail), None)  # type: ignore[arg-type]  # it fails before


@pytest.mark.parametrize(("factors", "taken"), [((64.0,), None), ((64.0, 1.0, 8.0), "x 1")])
def test_the_best_candidate_is_accepted_unless_it_does_harm(
    factors: tuple[float, ...], taken: str | None, register: Callable[[Step], None]
) -> None:
    register(Step("mine", propose(*factors), samples=40, judges=16))
    model = quantized()
    assert [c.reason for c in model.changes if c.step == "mine"] == ([taken] if taken else [])
    assert (f"mine: {LESS_ACCURATE}" in model.notes) == (taken is None)


def test_without_judges_any_result_is_accepted(register: Callable[[Step], None]) -> None:
    register(Step("mine", propose(64.0), samples=40))
    assert "mine" in [c.step for c in quantized().changes]
