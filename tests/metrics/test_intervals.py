"""Intervals of shares, medians and drops, and the order of labels."""

import math
from math import comb

import numpy as np
import pytest

from qtool.core.types import Array
from qtool.metrics.drop import Drop, jackknife_drop, share_drop
from qtool.metrics.intervals import _binomial_tails, exact_share_interval, median_interval
from qtool.metrics.labels import no_better_than_a_guess, other_order

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


LABELS = np.arange(90) % 3


def test_the_alphabetical_order_of_other_names() -> None:
    answers = np.array([2, 1, 0])[LABELS]
    answers[:5] = 1
    sentence = other_order(answers, LABELS, 3)
    assert "33% with these labels, and 97% in another order" in sentence
    assert "(label 0 is output 2, label 2 is output 0)" in sentence


@pytest.mark.parametrize(
    "answers",
    [LABELS, RNG.integers(0, 3, 90), np.zeros(90, int), np.where(RNG.random(90) < 0.5, LABELS, 0)],
    ids=["right", "random", "one class", "half right"],
)
def test_other_answers(answers: Array) -> None:
    assert other_order(answers, LABELS, 3) is None
    assert other_order(np.array([2, 1, 0]), LABELS[:3], 3) is None


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (LABELS, False),
        (np.where(RNG.random(90) < 0.5, LABELS, 0), False),
        (np.full(90, 2), True),
        (np.roll(LABELS, 1), True),
    ],
    ids=["right", "half right", "one class", "wrong"],
)
def test_a_model_that_does_not_know_its_data(answers: Array, said: bool) -> None:
    sentence = no_better_than_a_guess(answers, LABELS)
    assert (sentence is not None) == said
    if sentence is not None:
        assert "no more often than the most frequent label (30)" in sentence
        assert f"answers class {np.bincount(answers).argmax()} on " in sentence
    assert no_better_than_a_guess(answers[:40], LABELS[:40]) is None  # too few to say
    assert no_better_than_a_guess(answers, np.ones(90, int)) is None  # labels of one class


@pytest.mark.parametrize("share", [1.0, 0.8])  # of hits of both files
def test_an_answer_that_never_changes_needs_299_samples_for_a_point(share: float) -> None:
    def hits(count: int) -> np.ndarray:
        return np.arange(count) < share * count

    assert share_drop(hits(299), hits(299), 0.95).ends(1.0)[1] <= 0.01  # 0.99**299 < 0.05
    few = share_drop(hits(298), hits(298), 0.95)
    assert few.ends(1.0)[1] > 0.01
    assert few.samples_needed(0.01) == pytest.approx(299, abs=1)


@pytest.mark.parametrize(("lost", "gained"), [(0.02, 0.0), (0.05, 0.04)])
def test_ends_of_shares_are_exceeded_in_a_twentieth(lost: float, gained: float) -> None:
    generator, outside = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        u, base = generator.random(400), generator.random(400) < 0.8
        real = np.where(u < lost, True, np.where(u < lost + gained, False, base))
        other = np.where(u < lost, False, np.where(u < lost + gained, True, base))
        low, high = share_drop(real, other, 0.95).ends(1.0)
        outside += low > lost - gained, high < lost - gained
    assert (outside / 400 < 0.08).all()  # 0.05 with three standard deviations


def test_the_jackknife_of_a_mean_has_students_interval() -> None:
    terms = np.random.default_rng(0).normal(3.0, 1.0, (50, 2)) + np.array([0.5, 0.0])
    drop = jackknife_drop(lambda i: (terms[i, 0].mean(), terms[i, 1].mean()), 50, 0.95)
    each = terms[:, 0] - terms[:, 1]
    reach = 1.6766 * each.std(ddof=1) / np.sqrt(50)  # Student's distribution, 49 degrees
    assert drop.ends(1.0) == pytest.approx((each.mean() - reach, each.mean() + reach), rel=1e-3)


def test_three_samples_have_no_interval() -> None:
    assert jackknife_drop(lambda i: (1.0, 1.0), 3, 0.95) is None


def test_a_drop_up_to_the_limit_is_within_it() -> None:
    drop = Drop(0.0, 100, lambda factor: (-0.01, 0.01))
    assert drop.decides(0.01)
    assert not drop.decides(-0.01)


def test_all_or_none_have_the_closed_form() -> None:
    assert exact_share_interval(0, 5) == (0.0, pytest.approx(1 - 0.025 ** (1 / 5)))
    assert exact_share_interval(5, 5) == (pytest.approx(0.025 ** (1 / 5)), 1.0)


@pytest.mark.parametrize(("hits", "size"), [(22, 23), (45, 47), (1, 300), (10, 20), (2, 3)])
def test_an_end_has_the_tails_of_its_binomial(hits: int, size: int) -> None:
    low, high = exact_share_interval(hits, size)

    def tail(share: float, numbers: range) -> float:
        return sum(comb(size, k) * share**k * (1 - share) ** (size - k) for k in numbers)

    assert tail(low, range(hits, size + 1)) == pytest.approx(0.025)
    assert tail(high, range(hits + 1)) == pytest.approx(0.025)


def test_sizes_need_be_no_integers_and_may_be_large() -> None:
    between = exact_share_interval(21.5, 22.5)
    assert exact_share_interval(21, 22)[0] < between[0] < exact_share_interval(22, 23)[0]
    low, high = exact_share_interval(999_999.5, 1e6)
    assert 0.99999 < low < high < 1
    assert exact_share_interval(22, 23, confidence=0.5)[0] > exact_share_interval(22, 23)[0]


@pytest.mark.parametrize(
    ("lost", "gained", "limit", "least", "most"),
    [
        (0.03, 0.02, 0.01, 0.045, 0.0505),
        (0.02, 0.0, 0.02, 0.01, 0.0505),
        (0.02, 0.02, 0.06, 0.99, 1.0),
    ],
    ids=["at the limit", "at the limit, none gained", "far below it"],
)
def test_probability_that_the_interval_of_a_drop_is_below_a_limit(
    lost: float, gained: float, limit: float, least: float, most: float
) -> None:
    """Exact, over all counts of samples that 300 may lose and gain: a true drop at the limit passes
    a gate of 95 % in 5 % of cases, and is a regression in as many."""
    accepted = refused = 0.0
    for worse in range(30):
        for better in range(25 if gained else 1):
            same = 300 - worse - better
            counts = comb(300, worse) * comb(300 - worse, better)
            probability = counts * lost**worse * gained**better * (1 - lost - gained) ** same
            if probability < 1e-8:
                continue
            hits = np.arange(300) >= better
            others = np.arange(300) < 300 - worse
            low, high = share_drop(hits, others, 0.95).ends(1.0)
            accepted += probability * (high <= limit)
            refused += probability * (low > limit)
    assert least <= accepted <= most
    assert refused <= 0.0555
