"""The levels of a graph around the nodes that a computation stops at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

import qtool
from qtool.core.graph.executor import Executor
from qtool.core.graph.levels import Levels, execution_order, run_by_levels
from qtool.core.graph.node_calls import Values

READS = {1: [0], 2: [0], 3: [1], 4: [0], 5: [3, 4], 6: [5]}
"""1, 2 and 4 read 0; 3 reads 1; 5 adds 3 and 4, 6 reads 5."""


class Fork(nn.Module):
    """The sum of two layers in a row and of a third, and a layer of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.other, self.head = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(x)) + self.other(x))


def test_stops_come_last_of_what_can_be_computed() -> None:
    assert execution_order(READS, {1, 4, 6}) == [2, 1, 3, 4, 5, 6]


def test_what_does_not_change_each_other_is_a_level() -> None:
    run = Executor(qtool.capture_model(Fork().eval(), torch.zeros(2, 3)).graph)
    one, two, other, head = (run.indices[name] for name in ("one", "two", "other", "head"))
    levels = Levels.of(run, dict.fromkeys((one, two, other, head), ()))
    assert [levels.stops_of(k) for k in range(levels.top + 2)] == [
        [],
        [one, other],
        [two],
        [head],
        [],
    ]
    later = Levels.of(run, {one: (), two: (), other: (two,), head: ()})
    assert [later.stops_of(k) for k in range(1, later.top + 1)] == [[one], [two], [other], [head]]
    assert two in later.alive(2)  # `other` looks at it
    assert one not in later.alive(2)


def test_a_level_keeps_nothing_that_nobody_reads_any_more() -> None:
    layers = [nn.Linear(3, 3) for _ in range(6)]
    graph = qtool.capture_model(nn.Sequential(*layers).eval(), torch.zeros(2, 3)).graph
    run = Executor(graph)
    constants = Levels.of(run, {}).constants
    known: list[list[int]] = []

    def visit(names: list[str], values: Sequence[Sequence[Values]]) -> dict[str, torch.Tensor]:
        for (row,) in values:
            known.append([i for i, v in enumerate(row) if v is not None and i not in constants])
        return {}

    batch = graph.call_of([torch.ones(2, 3)])
    run_by_levels(run, [batch], dict.fromkeys(map(str, range(6)), ()), visit)
    in_float, quantized = known[::2], known[1::2]
    assert max(map(len, in_float)) == 2  # the input of the layer and its result
    assert max(map(len, quantized)) == 1
