"""Tests of the work of convolutions, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from qtool.core import graph as G
from qtool.planning.speed.costs import Convolution, CostTable, convolution_of
from tests.planning.planned import canonical

TABLE = CostTable(
    measured="a runtime",
    in_float={"call": 100, "mac": 1, "result": 10, "input": 1000},
    in_integers={"call": 200, "mac": 0.5, "pixel": 2, "result": 3, "tap": 7},
    elementwise={"add": (1, 2)},
    call=5,
    boundary=50,
    boundary_element=0.5,
)


def sizes(layer: nn.Module, *shape: int) -> Convolution:
    graph = canonical(layer, shape)
    batch = G.captured_batch(graph)  # two for a batch of one
    (found,) = (s for n in graph.nodes if (s := convolution_of(n, batch)) is not None)
    return found


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_sizes_are_those_of_one_sample(batch: int) -> None:
    found = sizes(nn.Conv2d(6, 20, 3, stride=2, padding=1), batch, 6, 8, 12)
    assert found == Convolution(6, 20, groups=1, taps=9, pixels=4 * 6, read=8 * 12)


def test_the_channels_of_a_group_are_counted() -> None:
    found = sizes(nn.Conv1d(8, 16, 5, groups=4), 2, 8, 9)
    assert found == Convolution(2, 4, groups=4, taps=5, pixels=5, read=9)


def test_work_of_a_wide_convolution() -> None:
    wide = Convolution(5, 20, groups=1, taps=9, pixels=10, read=40)
    assert wide.float_work() == {"call": 1, "mac": 10 * 45 * 32, "result": 200, "input": 200}
    integers = {"call": 1, "mac": 10 * 48 * 32, "pixel": 10, "result": 200, "tap": 90}
    assert wide.integer_work() == integers
    in_float = 100 + 10 * 45 * 32 + 10 * 200 + 1000 * 200
    in_integers = 200 + 0.5 * 10 * 48 * 32 + 2 * 10 + 3 * 200 + 7 * 90
    assert TABLE.convolution(wide) == (in_float, in_integers)


def test_work_of_other_kinds() -> None:
    image = Convolution(3, 16, groups=1, taps=9, pixels=10, read=40)
    assert image.float_work() == {"call": 1, "image mac": 10 * 27 * 16, "result": 160}
    narrow = Convolution(16, 8, groups=1, taps=1, pixels=10, read=10)
    assert narrow.float_work() == {"call": 1, "narrow mac": 1280, "narrow term": 160}
    counted = {"call": 1, "narrow pixel": 10, "narrow term": 160, "result": 80, "tap": 0}
    assert narrow.integer_work() == counted


def test_work_of_a_depthwise_convolution() -> None:
    depthwise = Convolution(1, 1, groups=24, taps=9, pixels=10, read=10)
    in_float = {"call": 1, "depthwise result": 240, "depthwise tap": 10 * 32 * 9}
    assert depthwise.float_work() == in_float
    work = depthwise.integer_work()
    assert work["depthwise tap"] == 10 * 24 * 9
    assert work["depthwise pixel"] == work["depthwise rest"] == 90
    assert replace(depthwise, groups=32).integer_work()["depthwise rest"] == 0


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + x.flip(1)).exp()


def test_other_operators_cost_their_elements_and_unknown_ones_nothing() -> None:
    calls = [n for n in canonical(Sum(), (2, 3, 4)).nodes if n.op == "call_function"]
    costs = {n.target.__name__.split(".")[0]: TABLE.node(n, 2) for n in calls}
    assert costs == {"flip": (0, 0), "add": (5 + 12, 5 + 24), "exp": (0, 0)}
    assert TABLE.edge(calls[0], 2) == 50 + 0.5 * 12
