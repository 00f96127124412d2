"""The analytic clips: published thresholds, and nearly the least error where the bell is true."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from qtool import observers
from qtool.core.errors import CalibrationError
from qtool.core.types import INT4, INT8_NARROW, UINT4, UINT8, QType
from qtool.observers import Histogram, Range, gaussian_laplace, ranges, solve

COUNT = 200_000
Estimate = Callable[[Histogram, QType, bool], Range]


def normal(seed: int = 0) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))


def double_sided() -> torch.Tensor:
    """Of a Laplace distribution of width 1."""
    u = torch.rand(COUNT, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return u.sign() * (1 - u.abs()).clamp(min=1e-12).log()


def of(x: torch.Tensor, axis: int | None = None) -> Histogram:
    found = Histogram(axis)
    found.update(x)
    return found


def error(x: torch.Tensor, ends: Range, qtype: QType, symmetric: bool) -> float:
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
        least = error(x, ranges.mse(of(x), qtype, False), qtype, False)
        found = error(x, estimate(of(x), qtype, False), qtype, False)
        assert found <= 1.05 * least  # the search itself looks 1 % apart
        everything = error(x, of(x).extent(), qtype, False)
        assert found < everything


@pytest.mark.parametrize("estimate", [gaussian_laplace.gaussian, gaussian_laplace.laplace])
def test_an_outlier_does_not_make_the_range(estimate: Estimate) -> None:
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
    x = torch.stack([normal(), normal(1) * 10])
    _, high = gaussian_laplace.gaussian(of(x, 0), INT4, True)
    assert float(high[1] / high[0]) == pytest.approx(10, rel=0.02)
    _, finer = gaussian_laplace.gaussian(of(x, 0), INT8_NARROW, True)
    assert bool((finer > high).all())


def test_zeros_and_one_value() -> None:
    assert [float(t) for t in gaussian_laplace.gaussian(of(torch.zeros(9)), UINT8, False)] == [0, 0]
    _, high = gaussian_laplace.laplace(of(torch.full((9,), 3.0)), UINT8, False)
    assert float(high) == 3
    with pytest.raises(CalibrationError):
        gaussian_laplace.gaussian(Histogram(None), UINT8, False)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_they_are_registered(name: str) -> None:
    spec = observers.parse(name)
    assert observers.options_of(spec) == {"bins": 2048}
    found = observers.range_of(spec, of(normal()), UINT8, False)
    assert found == getattr(gaussian_laplace, name)(of(normal()), UINT8, False)
