from __future__ import annotations

import math

import numpy as np
import pytest

from qtool.metrics.medians import _binomial_tails, median_interval

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n", [6, 10, 25, 96, 300])
def test_the_interval_covers_the_median_of_the_population(n: int) -> None:
    hits = []
    for _ in range(2000):
        low, high = median_interval(RNG.exponential(size=n))
        hits.append(low <= np.log(2) <= high)
    assert 0.93 <= np.mean(hits) <= 0.97


@pytest.mark.parametrize("n", [2, 3, 25, 1000])
def test_tails_are_those_of_whole_numbers(n: int) -> None:
    exact = [sum(math.comb(n, j) for j in range(i + 1)) / 2**n for i in range(n // 2)]
    assert _binomial_tails(n) == pytest.approx(exact, rel=1e-9)


def test_few_values_have_the_interval_from_the_smallest_to_the_largest() -> None:
    assert median_interval(np.array([3.0, 1.0, 2.0])) == (1.0, 3.0)
    assert median_interval(np.array([3.0])) == (3.0, 3.0)


def test_the_interval_of_more_samples_than_a_float_counts() -> None:
    """2^n does not fit into a float: rows of tokens are samples of a block."""
    low, high = median_interval(np.arange(3000.0))
    assert 1445 < low < 1500 < high < 1555
