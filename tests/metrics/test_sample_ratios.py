"""Intervals of agreements hold the value on new samples, whose values are not independent."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qtool.core.output_evidence import Evidence
from qtool.metrics.built_in import agreement_metric, agreement_with_reference
from qtool.metrics.intervals import exact_share_interval
from qtool.metrics.output_agreement import output_agreement
from qtool.metrics.sample_ratios import below_one_interval, clustered_share_interval
from qtool.metrics.sample_statistics import CLASSES, TOKENS, SampleStatistics

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


@pytest.mark.parametrize(("hits", "total"), [(99, 100), (45, 50), (9, 10), (449, 450)])
def test_single_values_have_the_exact_interval(hits: int, total: int) -> None:
    same = (np.arange(total) < hits).astype(float)
    assert clustered_share_interval(same, np.ones(total)) == exact_share_interval(hits, total)


@pytest.mark.parametrize("tokens", [0, 12])
@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_an_agreement_has_one_interval(tokens: int, confidence: float) -> None:
    """That of a table of all samples, and of the metric of a search, are the yardstick's."""
    rng = np.random.default_rng(0)
    real = rng.normal(size=(60, tokens, 10) if tokens else (60, 10))
    other = real + 0.3 * rng.normal(size=real.shape)
    equal = real.argmax(-1) == other.argmax(-1)
    statistics = statistics_of(equal)
    share = agreement_with_reference(statistics, 1, confidence)
    metric = agreement_metric(statistics, (), confidence)
    assert share is not None
    assert metric is not None
    (drop,) = metric.intervals[1:]
    assert (1 - drop.high, 1 - drop.low) == pytest.approx((share.low, share.high))
    yardstick = output_agreement("logits", real, other, Evidence(labels=10))
    assert yardstick.kind == ("token" if tokens else "class")
    same = (share.low, share.high) == pytest.approx(yardstick.interval)
    assert same == (confidence == 0.95)


def statistics_of(equal: Array) -> SampleStatistics:
    count, none = len(equal), np.zeros((2, len(equal), 0))
    whole = np.stack([np.ones_like(equal), equal]).reshape(2, count, -1)
    tokens = equal.ndim == 2
    return SampleStatistics(
        **dict.fromkeys(("loss", "divergence", "values", "outside"), none),
        classes=none if tokens else 1 - whole.astype(int),
        signals=np.ones((count, 1)),
        noises=np.zeros((2, count, 1)),
        sizes=(count,),
        not_finite=np.zeros((2, count)),
        tokens=np.full(count, equal.shape[1] if tokens else 0),
        equal=whole.sum(2),
        scores=TOKENS if tokens else CLASSES,
    )


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
