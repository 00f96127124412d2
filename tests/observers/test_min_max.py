"""The exact minimum and maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qtool.core.errors import CalibrationError
from qtool.observers import MinMax
from tests.observers.differential import QUICK, VALUES, assert_order_free, tensor


@QUICK
@given(VALUES, st.data())
def test_any_split_order_and_merging_give_one_state(
    values: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(values))))
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=4))
    assert_order_free(lambda: MinMax(None), tensor(values), order, cuts)
    assert_order_free(lambda: MinMax(0), torch.stack([tensor(values)] * 3), order, cuts)


@QUICK
@given(VALUES)
def test_extent_is_the_minimum_and_maximum(values: list[float]) -> None:
    statistic = MinMax(None)
    statistic.update(tensor(values))
    low, high = statistic.extent()
    assert (low.item(), high.item()) == (min(values), max(values))


ZERO, ONE = np.zeros(1, np.float32), np.ones(1, np.float32)
ROWS = np.ones(1, np.int64)
DAMAGED: dict[str, dict[str, Any]] = {
    "a key less": {"min": ZERO, "rows": ROWS},
    "a key more": {"min": ZERO, "max": ZERO, "rows": ROWS, "mean": ZERO},
    "dtype": {"min": np.zeros(1, np.float64), "max": ZERO, "rows": ROWS},
    "rank": {"min": np.zeros((), np.float32), "max": np.zeros((), np.float32), "rows": ROWS},
    "lengths": {"min": ZERO, "max": np.zeros(0, np.float32), "rows": ROWS},
    "channels per tensor": {"min": np.zeros(2, np.float32), "max": ONE, "rows": ROWS},
    "order": {"min": ONE, "max": ZERO, "rows": ROWS},
    "NaN": {"min": np.full(1, np.nan, np.float32), "max": ZERO, "rows": ROWS},
    "no array": {"min": [0.0], "max": ZERO, "rows": ROWS},
    "no rows": {"min": ZERO, "max": ONE, "rows": 0 * ROWS},
    "rows of nothing": {"min": ZERO[:0], "max": ZERO[:0], "rows": ROWS},
    "several rows": {"min": ZERO, "max": ONE, "rows": np.ones(2, np.int64)},
}


@pytest.mark.parametrize("state", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CalibrationError, match="damaged"):
        MinMax.from_state(state, None)


def test_rows_are_counted() -> None:
    first, second = MinMax(-1), MinMax(-1)
    first.update(torch.zeros(2, 3, 4))
    second.update(torch.ones(5, 4))
    first.merge(second)
    assert first.rows == 11 == MinMax.from_state(first.state(), -1).rows
