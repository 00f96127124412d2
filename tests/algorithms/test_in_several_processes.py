"""Steps that several processes share: the model of one, to the bit."""

import functools
import os
from typing import Any

import pytest
import torch
from torch import nn

from qtool.algorithms import acceptance
from qtool.algorithms.learned_scales import training
from qtool.algorithms.weight_rounding import layer_solver
from qtool.api.conversion import quantize
from qtool.core.graph.fingerprint import state_hash
from qtool.frontends.captured_model import Captured, capture_model
from tests.distributed.processes import run, values

WIDTH, BATCHES = 12, 7


class Attention(nn.Module):
    """Three layers read one tensor, one is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = (self.q(x) @ self.k(x).mT).softmax(-1)
        return self.head((x + self.out(weights @ self.v(x))).relu())


@functools.cache
def data() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    mixed = torch.randn(WIDTH // 3, WIDTH, generator=random)
    return [torch.randn(16, 5, WIDTH // 3, generator=random) @ mixed for _ in range(BATCHES)]


@functools.cache
def captured() -> Captured:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return capture_model(Attention().eval(), data()[0])


def solved(rank: int, size: int) -> tuple[str, int, list[str]]:
    """The model, how many layers were solved here, and what was changed."""
    count, real, rounds = 0, layer_solver.best_solution, (training.MIN_STEPS, training.MAX_STEPS)

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return real(*given)

    layer_solver.best_solution, training.MIN_STEPS, training.MAX_STEPS = counted, 20, 20
    try:
        few = [{"select": "*", "weights": "int4"}]
        made = quantize(
            captured(), data()[rank::size], recipe=few, recover=["gptq", "learned-scales"]
        )
    finally:
        layer_solver.best_solution, training.MIN_STEPS, training.MAX_STEPS = real, *rounds
    return state_hash(made.graph.module), count, [f"{c.step} {c.count}" for c in made.changes]


def solved_twice(rank: int, size: int) -> list[tuple[str, int, list[str]]]:
    """The second time ranks do not hold the same bits."""
    found = solved(rank, size)
    acceptance._task_fingerprint = lambda *_: str(rank)
    return [found, solved(rank, size)]


@pytest.mark.matrix
def test_layers_are_dealt_out_to_the_same_bytes() -> None:
    mark, count, changes = alone = solved(0, 1)
    assert count == 5
    assert changes == ["gptq 5", "learned-scales 13"]
    found = values(run(3, solved_twice, 3))
    counts = [count for (_, count, _), _ in found]
    assert sum(counts) == 5
    assert min(counts) > 0
    assert [together for together, _ in found] == [(mark, count, changes) for count in counts]
    assert [apart for _, apart in found] == [alone] * 3


def dies(rank: int) -> None:
    if rank == 1:
        layer_solver.best_solution = lambda *_: os._exit(3)
    quantize(captured(), data()[rank::2], mode="weight-only", recover=["gptq"])


@pytest.mark.matrix
def test_a_rank_that_dies_while_it_solves_ends_the_others() -> None:
    one, other = run(2, dies)
    assert other.code == 3
    assert one.error.endswith("rank 1 of 2 is gone: no sign of life for 50 s")
