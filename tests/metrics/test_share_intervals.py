"""The exact interval of a share, against binomial tails and tables."""

from __future__ import annotations

from math import comb

import pytest

from qtool.metrics.share_intervals import exact_share_interval


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
