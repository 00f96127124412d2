"""Intervals of agreements hold the value on new samples, whose values are not independent."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qtool.metrics.output_agreement import output_agreement
from qtool.metrics.sample_ratios import below_one_interval, clustered_share_interval

Array = np.ndarray[Any, Any]


def test_a_share_without_a_difference_is_bounded_by_the_number_of_samples() -> None:
    interval = clustered_share_interval(np.full(42, 30.0), np.full(42, 30.0))
    assert interval is not None
    assert interval == (pytest.approx(0.025 ** (1 / 42)), 1.0)


def test_values_of_a_sample_count_as_one_where_they_agree() -> None:
    hits = (np.arange(40) % 4 > 0).astype(float)
    alone, many = (
        clustered_share_interval(hits, np.ones(40)),
        clustered_share_interval(30 * hits, np.full(40, 30.0)),
    )
    assert many == pytest.approx(alone)


def test_a_single_sample_has_no_interval() -> None:
    one = np.ones(1)
    assert clustered_share_interval(one, one) is None
    assert below_one_interval(one, one) is None


def classes(rng: np.random.Generator, count: int) -> tuple[str, Array, Array]:
    real = rng.normal(size=(count, 6, 10))
    return (
        "logits",
        real,
        real + 0.2 * rng.lognormal(size=(count, 1, 1)) * rng.normal(size=real.shape),
    )


def mask(rng: np.random.Generator, count: int) -> tuple[str, Array, Array]:
    logits = 6 * rng.normal(size=(count, 30)) + rng.normal(size=(count, 1))
    other = logits + rng.lognormal(0, 0.5, (count, 1)) * rng.normal(size=logits.shape)
    return "mask", 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-other))


def vectors(rng: np.random.Generator, count: int) -> tuple[str, Array, Array]:
    real = rng.normal(size=(count, 32))
    return (
        "embedding",
        real,
        real + 0.1 * rng.lognormal(0, 0.4, (count, 1)) * rng.normal(size=real.shape),
    )


def numbers(rng: np.random.Generator, count: int) -> tuple[str, Array, Array]:
    real = rng.normal(size=(count, 1))
    return "price", real, real + 0.2 * rng.normal(size=real.shape)


def close_numbers(rng: np.random.Generator, count: int) -> tuple[str, Array, Array]:
    """Few swaps of neighbours, each of which weighs more among 60 samples than among 2,000."""
    real = rng.normal(size=(count, 1))
    return "price", real, real + 0.003 * rng.normal(size=real.shape)


@pytest.mark.parametrize("draw", [classes, mask, vectors, numbers, close_numbers])
def test_holds_the_value_on_new_samples(
    draw: Callable[[np.random.Generator, int], tuple[str, Array, Array]],
) -> None:
    """Of 200 intervals at least 88 % hold the value on 2,000 other samples, none is useless."""
    rng, held, widths = np.random.default_rng(0), 0, []
    name, real, other = draw(rng, 2000)
    all_of_them = output_agreement(name, real, other)
    assert all_of_them is not None
    for _ in range(200):
        some = output_agreement(*draw(rng, 60))
        assert some.interval is not None
        low, high = some.interval
        assert low <= some.value <= high
        held += low <= all_of_them.value <= high
        widths.append(high - low)
    assert held >= 176
    assert float(np.mean(widths)) < 0.25


def test_is_shown_with_the_value() -> None:
    rng = np.random.default_rng(0)
    shown = output_agreement(*classes(rng, 60))
    assert shown.interval is not None
    low, high = (f"{100 * end:.3g}" for end in shown.interval)
    assert f" % ({low} to {high} %), KL divergence " in shown.with_interval()
    assert " to " not in str(shown)
    one_text = output_agreement(*(classes(rng, 1)))
    assert one_text.interval is not None, "positions of one text count each"
    cosine = output_agreement(*vectors(rng, 60))
    assert math.isclose(cosine.interval[1], cosine.value, abs_tol=0.01)
    assert f"({cosine.interval[0]:.4f} to " in cosine.with_interval()
