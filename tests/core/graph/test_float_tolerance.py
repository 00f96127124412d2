"""Whether two runs agree, as far as float32 can."""

from __future__ import annotations

import torch
from torch import nn

from qtool.core.graph.float_tolerance import (
    TOLERANCE,
    distance,
    dtype_tolerance,
    float_tolerance,
    largest_distance,
)

INF, NAN = float("inf"), float("nan")


def test_the_distance_is_relative_to_the_range() -> None:
    a = torch.tensor([0.0, 50.0, 100.0])
    assert distance(a, a + 1) == 0.01
    assert distance(a - 50, a - 49) == 0.01  # from the least to the largest
    assert distance(torch.zeros(0), torch.zeros(0)) == 0


def test_what_is_not_finite_has_to_be_the_same() -> None:
    a = torch.tensor([INF, NAN, 1.0])
    assert distance(a, a.clone()) == 0
    assert distance(a, torch.tensor([INF, 1.0, 1.0])) == INF
    assert distance(a, torch.tensor([-INF, NAN, 1.0])) == INF


def test_type_and_shape_have_to_be_the_same() -> None:
    assert distance(torch.zeros(2), torch.zeros(2, dtype=torch.float64)) == INF
    assert distance(torch.zeros(2), torch.zeros(1, 2)) == INF


def test_few_integers_may_differ() -> None:
    a = torch.arange(200)
    assert distance(a, a.index_fill(0, torch.tensor([7]), 0)) == 0
    assert distance(a, a + 1) == INF


def test_the_worst_is_named() -> None:
    a = torch.tensor([0.0, 1.0])
    assert largest_distance([a, a], [a, a + 0.5]) == (1, 0.5)
    assert largest_distance([], []) == (0, 0.0)


def test_a_network_that_amplifies_roundings_has_more_noise() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    calm = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    class Differences(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1e4) - 1e4

    assert float_tolerance(calm, [x], {}) < TOLERANCE
    assert float_tolerance(nn.Sequential(calm, Differences()), [x], {}) > TOLERANCE


def test_a_network_whose_output_is_nothing_but_rounding_has_all_of_it_for_noise() -> None:
    alone = nn.Sequential(nn.Linear(16, 1), nn.GroupNorm(1, 1)).eval()  # of one value: x - x
    alone[0].weight.data.zero_()
    alone[0].bias.data.fill_(-14.15)
    assert float_tolerance(alone, [torch.randn(4, 16)], {}) > 1


def test_what_is_another_function_in_float64_tells_nothing_of_float32() -> None:
    class Lowest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(x > 0, torch.finfo(x.dtype).max / 2)

    assert float_tolerance(Lowest(), [torch.randn(4, 16)], {}) < TOLERANCE


def test_the_tolerance_is_two_steps_of_coarse_types() -> None:
    steps = {torch.float16: 2**-9, torch.bfloat16: 2**-6, torch.float32: 1e-4, torch.int64: 1e-4}
    for dtype, expected in steps.items():
        assert dtype_tolerance(torch.zeros(1, dtype=dtype)) == expected
