"""Ranges from statistics, against numpy and brute force."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from qtool.core.errors import CalibrationError
from qtool.core.types import INT8, INT8_NARROW, UINT8, QType
from qtool.observers import Histogram, MinMax, MovingAverage, ranges, solve
from tests.observers.differential import QUICK, VALUES, observed, tensor

EXACT_P = [50.0, 75.0, 87.5, 93.75, 100.0]  # whose left-out share is a float without rounding


def histogram_of(x: torch.Tensor, axis: int | None = None, bins: int = 2048) -> Histogram:
    statistic = Histogram(axis, bins=bins)
    statistic.update(x)
    return statistic


def assert_percentile(x: torch.Tensor, p: float, lo: float, hi: float, width: float) -> None:
    """(lo, hi) is numpy's percentile to a bin's width, clipped only on its own side of zero."""
    values = x.double().numpy()
    low = -np.percentile(-values, p, method="inverted_cdf")
    high = np.percentile(values, p, method="inverted_cdf")
    low = values.min() if values.min() >= 0 else min(low, 0)
    high = values.max() if values.max() <= 0 else max(high, 0)
    assert abs(lo - low) <= width
    assert abs(hi - high) <= width
    assert values.min() <= lo <= hi <= values.max()


@QUICK
@example([0.0, 1.0, 2.0, 3.0], 75.0)  # the share ends exactly with a bin
@given(VALUES, st.sampled_from(EXACT_P))
def test_percentile_is_numpys_to_a_bin(values: list[float], p: float) -> None:
    statistic = histogram_of(tensor(values))
    (bins,) = statistic.channel_bins()
    lo, hi = ranges.percentile(statistic, p)
    assert_percentile(tensor(values), p, lo.item(), hi.item(), bins.edges[1] - bins.edges[0])


def test_percentile_leaves_a_lone_outlier_out() -> None:
    x = torch.cat([torch.rand(1_000_000), tensor([30.0])])
    lo, hi = ranges.percentile(histogram_of(x), 99.99)
    assert lo == x.min()
    assert 0.99 < hi < 1.01


def test_percentile_is_linear_within_a_bin() -> None:
    width = 2.0**-11
    x = torch.arange(2048 * 16) * width / 16  # 16 in each bin, [0, 1)
    _, hi = ranges.percentile(histogram_of(x), 75)
    assert hi == 0.75
    _, hi = ranges.percentile(histogram_of(x), 75 + 100 * width / 4)
    assert hi.item() == pytest.approx(0.75 + width / 4, abs=1e-12)


def test_min_max_of_any_statistic() -> None:
    for kind in (MinMax, MovingAverage, Histogram):
        lo, hi = observed(lambda: kind(None), [tensor([-1, 0.3, 2])]).extent()  # noqa: B023
        assert (lo.item(), hi.item()) == (-1, 2)


def true_error(
    x: torch.Tensor, lo: torch.Tensor, hi: torch.Tensor, qtype: QType, symmetric: bool
) -> torch.Tensor:
    """Mean squared error of really quantizing `x` [n] under the ranges [K]: float64 [K]."""
    params = solve(lo, hi, qtype, symmetric, axis=0)
    codes = params.quantize(x.expand(len(lo), -1))
    return (params.dequantize(codes).double() - x).square().mean(1)


def brute_force(x: torch.Tensor, qtype: QType, symmetric: bool) -> float:
    """The smallest true error over a fine grid of both ends."""
    ratios = torch.linspace(0.02, 1, 50, dtype=torch.float64)
    low, high = x.min().double().clamp(max=0), x.max().double().clamp(min=0)
    if symmetric or low == 0 or high == 0:
        lo, hi = low * ratios, high * ratios
        if symmetric:
            hi = torch.maximum(-low, high) * ratios
            lo = -hi
    else:
        lo, hi = (g.reshape(-1) for g in torch.meshgrid(low * ratios, high * ratios, indexing="ij"))
    errors = [
        true_error(x, a, b, qtype, symmetric)
        for a, b in zip(lo.split(100), hi.split(100), strict=True)
    ]
    return torch.cat(errors).min().item()


def assert_near_best(x: torch.Tensor, lo: float, hi: float, qtype: QType, symmetric: bool) -> None:
    error = true_error(x, torch.tensor([lo]), torch.tensor([hi]), qtype, symmetric).item()
    assert error <= 1.02 * brute_force(x, qtype, symmetric)


DISTRIBUTIONS: dict[str, Callable[[], torch.Tensor]] = {
    "normal": lambda: torch.randn(4000),
    "relu": lambda: torch.randn(4000).relu(),
    "uniform": lambda: torch.rand(4000),
    "heavy tails": lambda: torch.randn(4000) ** 3,
    "silu": lambda: torch.nn.functional.silu(2 * torch.randn(4000)),
    "negative": lambda: -(torch.rand(4000) ** 4),
    "outlier": lambda: torch.cat([torch.randn(4000), tensor([20.0])]),
    "outlier below": lambda: torch.cat([torch.randn(4000), tensor([-20.0])]),
    "constant": lambda: torch.full((100,), 3.0),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("qtype", "symmetric"), [(UINT8, False), (INT8, True), (INT8_NARROW, True)]
)
def test_mse_is_near_the_best_range(name: str, qtype: QType, symmetric: bool) -> None:
    x = DISTRIBUTIONS[name]()
    lo, hi = ranges.mse(histogram_of(x), qtype, symmetric)
    assert x.min() <= lo <= hi <= x.max()
    assert_near_best(x, lo.item(), hi.item(), qtype, symmetric)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("share", "factor"), [(0.001, 10), (0.005, 3), (0.02, 2)])
def test_mse_clips_each_end_as_it_needs(side: int, share: float, factor: float) -> None:
    nibble = QType("uint4", 0, 15, "uint8")  # few codes: clipping matters
    in_tail = torch.rand(4000) < share
    x = side * torch.where(in_tail, factor * torch.randn(4000).abs() ** 3, -4 * torch.rand(4000))
    lo, hi = ranges.mse(histogram_of(x), nibble, False)
    assert_near_best(x, lo.item(), hi.item(), nibble, False)


@pytest.mark.parametrize(("qtype", "symmetric"), [(UINT8, False), (INT8, True)])
def test_the_error_integral_is_the_mean_over_evenly_spread_values(
    qtype: QType, symmetric: bool
) -> None:
    (bins,) = histogram_of(torch.randn(300), bins=64).channel_bins()
    spread = (np.arange(4096) + 0.5) / 4096 * (bins.edges[1] - bins.edges[0])
    x = torch.from_numpy(bins.edges[:-1, None] + spread)
    lo = np.array([-4.0, -1.0, -0.01, 0.0])
    hi = np.array([4.0, 2.0, 0.02, 0.5])
    actual = ranges._errors(bins, lo, hi, qtype, symmetric)
    for i in range(4):
        params = solve(torch.tensor(lo[i]), torch.tensor(hi[i]), qtype, symmetric, None)
        scale, zero = params.scale.double(), params.zero_point
        codes = (torch.round(x / scale) + zero).clamp(qtype.qmin, qtype.qmax)
        means = ((codes - zero) * scale - x).square().mean(1)
        assert actual[i] == pytest.approx((means.numpy() * bins.counts).sum(), rel=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e30, 3e38])
def test_extreme_magnitudes_give_finite_ranges(scale: float) -> None:
    x = torch.linspace(-1, 1, 101) * scale
    for lo, hi in (
        ranges.mse(histogram_of(x), UINT8, False),
        ranges.mse(histogram_of(x), INT8, True),
        ranges.percentile(histogram_of(x)),
    ):
        assert x.min() <= lo <= hi <= x.max()


def test_channels_get_their_own_ranges() -> None:
    x = torch.randn(3, 500) ** 3 * tensor([1e-3, 1, 1e3])[:, None]
    together = histogram_of(x, axis=0)
    for estimate in (
        Histogram.extent,
        lambda s: ranges.percentile(s, 99),
        lambda s: ranges.mse(s, INT8, True),
    ):
        lo, hi = estimate(together)
        assert lo.dtype == hi.dtype == torch.float64
        for c in range(3):
            assert estimate(histogram_of(x[c])) == (lo[c], hi[c])


@pytest.mark.parametrize(
    "estimate", [Histogram.extent, ranges.percentile, lambda s: ranges.mse(s, UINT8, False)]
)
def test_no_data_is_an_error(estimate: Callable[[Histogram], object]) -> None:
    with pytest.raises(CalibrationError, match="no data"):
        estimate(Histogram(None))
