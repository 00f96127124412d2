"""Observers that minimise an error: MSE, entropy, Gaussian and Laplace."""

from collections.abc import Callable

import pytest
import torch

from qtool import observers
from qtool.core.errors import CalibrationError
from qtool.core.types import INT4, INT8_NARROW, UINT4, UINT8, ObserverSpec, QType
from qtool.observers import Histogram, Range, gaussian_laplace, ranges, solve
from qtool.observers.entropy import entropy
from qtool.observers.mse import least_error

TYPES = {"zero points": (UINT4, False), "symmetric": (INT4, True)}


def error(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, *of: object) -> torch.Tensor:
    params = observers.solve(low, high, *of, axis=0)  # type: ignore[arg-type]  # a type and a bool
    return (params.round_trip(x) - x).square().sum(1)


@pytest.mark.parametrize(("qtype", "symmetric"), TYPES.values(), ids=TYPES.keys())
def test_no_row_is_worse_than_by_its_extremes_and_all_together_better(
    qtype: QType, symmetric: bool
) -> None:
    x = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    found = error(x, *least_error(x, qtype, symmetric), qtype, symmetric)
    extremes = error(x, x.amin(1).double(), x.amax(1).double(), qtype, symmetric)
    assert (found <= extremes).all()
    assert found.sum() < 0.95 * extremes.sum()


def test_it_comes_near_an_exhaustive_search() -> None:
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
    found = error(x, *least_error(x, UINT4, False), UINT4, False)
    low, high = x.amin(1).double(), x.amax(1).double()
    ratios = [1.1 - i / 50 for i in range(40)]
    each = [error(x, low * a, high * b, UINT4, False) for a in ratios for b in ratios]
    assert found.sum() < 1.1 * torch.stack(each).amin(0).sum()


def test_rows_of_zeros_and_of_one_value() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 3.0], [-2.0, -2.0]])
    low, high = least_error(x, UINT4, False)
    assert error(x, low, high, UINT4, False).max() < 1e-12


def test_an_observer_without_a_way_of_its_own_takes_its_statistic() -> None:
    x = torch.randn(3, 100)
    low, high = observers.range_of_rows(ObserverSpec("minmax"), x, UINT4, False)
    assert torch.equal(low, x.amin(1).double())
    assert torch.equal(high, x.amax(1).double())


COUNT = 200_000


def normal(count: int = COUNT, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def of(x: torch.Tensor, axis: int | None = None) -> Histogram:
    found = Histogram(axis)
    found.update(x)
    return found


@pytest.mark.parametrize("symmetric", [False, True])
def test_an_outlier_does_not_make_the_range(symmetric: bool) -> None:
    qtype = INT8_NARROW if symmetric else UINT8
    x = torch.cat([normal(), torch.tensor([60.0])])
    low, high = entropy(of(x), qtype, symmetric)
    assert 3 < float(high) < 12
    assert -12 < float(low) < -3


def test_values_that_are_many_are_not_clipped() -> None:
    x = torch.cat([normal(), normal(50_000) * 0.1 + 9])
    _, high = entropy(of(x), UINT8, False)
    assert float(high) > 9


def test_a_normal_distribution_keeps_nearly_all_of_itself() -> None:
    low, high = entropy(of(normal()), UINT8, False)
    assert 2.5 < -float(low) < 5
    assert 2.5 < float(high) < 5


def test_after_a_relu_the_range_begins_at_zero() -> None:
    low, _ = entropy(of(normal().relu()), UINT8, False)
    assert float(low) == 0


def test_zeros_of_a_relu_do_not_make_the_range_narrow() -> None:
    """Half of all values in one bin: spread over its code they would outweigh all else."""
    x = normal().abs() ** 1.5  # a tail, which a step as fine as a bin cuts off
    _, dense = entropy(of(x), UINT8, False)
    _, sparse = entropy(of(torch.cat([x, torch.zeros(200_000)])), UINT8, False)
    assert float(sparse) == pytest.approx(float(dense), rel=0.1)
    assert float(sparse) > 0.6 * float(x.max())


def test_fewer_codes_clip_more() -> None:
    _, wide = entropy(of(normal().abs()), UINT8, False)
    _, narrow = entropy(of(normal().abs()), UINT4, False)
    assert float(narrow) < float(wide)


def test_channels_have_ranges_of_their_own() -> None:
    x = torch.stack([normal(5000), normal(5000) * 10])
    _, high = entropy(of(x, 0), UINT8, False)
    assert 5 < float(high[1] / high[0]) < 20


def test_values_that_are_all_above_zero() -> None:
    low, high = entropy(of(normal().abs() + 3), UINT8, False)
    assert float(low) == 0
    assert float(high) > 3
    low, high = entropy(of(-normal().abs() - 3), UINT8, False)
    assert float(low) < -3
    assert float(high) == 0


Estimate = Callable[[Histogram, QType, bool], Range]


def double_sided() -> torch.Tensor:
    """Of a Laplace distribution of width 1."""
    u = torch.rand(COUNT, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return u.sign() * (1 - u.abs()).clamp(min=1e-12).log()


def squared_error(x: torch.Tensor, ends: Range, qtype: QType, symmetric: bool) -> float:
    params = solve(*ends, qtype, symmetric, None)
    return float((params.round_trip(x) - x).double().square().mean())


@pytest.mark.parametrize(
    ("cut", "bits", "published"),
    [
        ("gaussian", 2, 1.71),
        ("gaussian", 3, 2.15),
        ("gaussian", 4, 2.55),
        ("laplace", 2, 2.83),
        ("laplace", 3, 3.89),
        ("laplace", 4, 5.03),
    ],
)
def test_thresholds_are_those_of_the_paper(cut: str, bits: int, published: float) -> None:
    found = gaussian_laplace.threshold(getattr(gaussian_laplace, f"_{cut}_cut"), 2**bits / 2)
    assert found == pytest.approx(published, abs=0.01)  # cut to two decimals there


@pytest.mark.parametrize("qtype", [UINT4, UINT8])
@pytest.mark.parametrize(
    ("estimate", "values"),
    [(gaussian_laplace.gaussian, normal()), (gaussian_laplace.laplace, double_sided())],
)
def test_where_the_bell_is_true_the_error_is_nearly_the_least(
    estimate: Estimate, values: torch.Tensor, qtype: QType
) -> None:
    for x in (values, values.relu(), values + 0.7):
        least = squared_error(x, ranges.mse(of(x), qtype, False), qtype, False)
        found = squared_error(x, estimate(of(x), qtype, False), qtype, False)
        assert found <= 1.05 * least  # the search itself looks 1 % apart
        everything = squared_error(x, of(x).extent(), qtype, False)
        assert found < everything


@pytest.mark.parametrize("estimate", [gaussian_laplace.gaussian, gaussian_laplace.laplace])
def test_an_outlier_does_not_make_the_parametric_range(estimate: Estimate) -> None:
    x = torch.cat([normal(), torch.tensor([60.0])])
    low, high = estimate(of(x), UINT8, False)
    assert 2.5 < float(high) < 12
    assert -12 < float(low) < -2.5


def test_no_end_lies_where_no_element_was() -> None:
    x = normal().clamp(-1, 2)
    low, high = gaussian_laplace.laplace(of(x), UINT8, False)
    assert (float(low), float(high)) == (-1, 2)
    low, _ = gaussian_laplace.gaussian(of(normal().relu()), UINT8, False)
    assert float(low) == 0


def test_zeros_behind_a_relu_do_not_make_the_bell_narrow() -> None:
    some = normal().relu()
    more = torch.cat([some, torch.zeros(9 * COUNT)])
    (_, one), (_, other) = (gaussian_laplace.gaussian(of(x), UINT8, False) for x in (some, more))
    assert float(other) == pytest.approx(float(one), rel=1e-3)


def test_weights_of_each_channel_have_a_range_of_their_own() -> None:
    x = torch.stack([normal(), normal(seed=1) * 10])
    _, high = gaussian_laplace.gaussian(of(x, 0), INT4, True)
    assert float(high[1] / high[0]) == pytest.approx(10, rel=0.02)
    _, finer = gaussian_laplace.gaussian(of(x, 0), INT8_NARROW, True)
    assert bool((finer > high).all())


@pytest.mark.parametrize("estimate", [entropy, gaussian_laplace.gaussian, gaussian_laplace.laplace])
def test_zeros_and_one_value(estimate: Estimate) -> None:
    assert [float(t) for t in estimate(of(torch.zeros(9)), UINT8, False)] == [0, 0]
    assert float(estimate(of(torch.full((9,), 3.0)), UINT8, False)[1]) == 3


def test_nothing_has_no_range() -> None:
    with pytest.raises(CalibrationError):
        gaussian_laplace.gaussian(Histogram(None), UINT8, False)
