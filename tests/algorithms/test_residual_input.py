"""Which tensor the result of a layer is added to."""

from __future__ import annotations

import torch
from torch import nn

import qtool
from qtool.algorithms.residual_input import residual_input
from qtool.core.graph.executor import Executor


class Block(nn.Module):
    """first: alone into a sum, through a reshape. second: read twice. third: an output as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        summed = self.first(x).reshape(-1, 2, 2) + x.reshape(-1, 2, 2)
        twice = self.second(summed.reshape(-1, 4))
        both = twice + twice.relu()
        third = self.third(both)
        return third, third + x


def test_the_other_part_of_a_sum_is_found_where_nothing_else_reads_the_result() -> None:
    captured = qtool.capture_model(Block().eval(), (torch.randn(3, 4),))
    run = Executor(captured.graph)
    other = residual_input(run, run.indices["first"])
    assert other is not None
    assert run.calls[other].reads == (run.indices["x"],)
    assert residual_input(run, run.indices["second"]) is None
    assert residual_input(run, run.indices["third"]) is None
