"""Float values: what is finite, and what is near enough."""

import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import DataError
from qtool.core.graph.finite_outputs import check_weights
from qtool.core.graph.float_tolerance import (
    TOLERANCE,
    distance,
    dtype_tolerance,
    float_tolerance,
    largest_distance,
)
from tests.passes.differential import Function


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("0.weight", torch.nan, "NaN"),
        ("0.bias", -torch.inf, "Inf"),
        ("1.running_var", torch.nan, "NaN"),
    ],
)
def test_the_weight_is_named(name: str, value: float, what: str) -> None:
    broken = model()
    broken.state_dict()[name].view(-1)[1] = value
    message = rf"the weights of the model hold {what}: '{name}';"
    with pytest.raises(DataError, match=message):
        check_weights(broken)
    with pytest.raises(DataError, match=message):
        qtool.capture_model(broken, torch.zeros(2, 2, 8, 8))


def test_a_mask_may_be_infinite_and_a_lazy_weight_unknown() -> None:
    masked = model()
    masked.register_buffer("mask", torch.full((3,), -torch.inf))
    check_weights(masked)
    check_weights(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3, device="meta")))


INF, NAN = float("inf"), float("nan")


NUMBERS, ODD = torch.tensor([0.0, 50.0, 100.0]), torch.tensor([INF, NAN, 1.0])
COUNTS, ZEROS = torch.arange(200), torch.zeros(2)
DISTANCES = {
    "relative to the range": (NUMBERS, NUMBERS + 1, 0.01),
    "from the least to the largest": (NUMBERS - 50, NUMBERS - 49, 0.01),
    "of nothing": (torch.zeros(0), torch.zeros(0), 0),
    "the same values that are not finite": (ODD, ODD.clone(), 0),
    "a number for NaN": (ODD, torch.tensor([INF, 1.0, 1.0]), INF),
    "Inf of the other sign": (ODD, torch.tensor([-INF, NAN, 1.0]), INF),
    "another type": (ZEROS, ZEROS.double(), INF),
    "another shape": (ZEROS, ZEROS[None], INF),
    "few integers that differ": (COUNTS, COUNTS.index_fill(0, torch.tensor([7]), 0), 0),
    "many integers that differ": (COUNTS, COUNTS + 1, INF),
}


@pytest.mark.parametrize(("a", "b", "expected"), DISTANCES.values(), ids=DISTANCES)
def test_the_distance(a: torch.Tensor, b: torch.Tensor, expected: float) -> None:
    assert distance(a, b) == expected


def test_the_worst_is_named() -> None:
    a = torch.tensor([0.0, 1.0])
    assert largest_distance([a, a], [a, a + 0.5]) == (1, 0.5)
    assert largest_distance([], []) == (0, 0.0)


def test_a_network_that_amplifies_roundings_has_more_noise() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    calm = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    differences = Function(lambda x: (x + 1e4) - 1e4)
    assert float_tolerance(calm, [x], {}) < TOLERANCE
    assert float_tolerance(nn.Sequential(calm, differences), [x], {}) > TOLERANCE


def test_a_network_whose_output_is_nothing_but_rounding_has_all_of_it_for_noise() -> None:
    alone = nn.Sequential(nn.Linear(16, 1), nn.GroupNorm(1, 1)).eval()  # of one value: x - x
    alone[0].weight.data.zero_()
    alone[0].bias.data.fill_(-14.15)
    assert float_tolerance(alone, [torch.randn(4, 16)], {}) > 1


def test_what_is_another_function_in_float64_tells_nothing_of_float32() -> None:
    lowest = Function(lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).max / 2))
    assert float_tolerance(lowest, [torch.randn(4, 16)], {}) < TOLERANCE


def test_the_tolerance_is_two_steps_of_coarse_types() -> None:
    steps = {torch.float16: 2**-9, torch.bfloat16: 2**-6, torch.float32: 1e-4, torch.int64: 1e-4}
    for dtype, expected in steps.items():
        assert dtype_tolerance(torch.zeros(1, dtype=dtype)) == expected
