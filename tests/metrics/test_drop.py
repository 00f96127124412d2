"""Intervals of drops hold what they promise, and name how many samples would decide."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.metrics.drop import Drop, jackknife_drop, share_drop


def test_an_answer_that_never_changes_needs_299_samples_for_a_point() -> None:
    def hits(count: int) -> np.ndarray:
        return np.ones(count, bool)

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
