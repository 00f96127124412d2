"""The pipeline judges each step: one that fails or does harm leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.conversion_state import LESS_ACCURATE, ConversionState
from qtool.algorithms.pipeline import Step, run_step
from qtool.algorithms.registry import STEPS, register_step
from qtool.core.types import Change

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
