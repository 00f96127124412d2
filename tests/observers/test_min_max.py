"""The exact minimum and maximum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qtool.errors import CalibrationError
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


DAMAGED = {
    "a key less": {"min": np.zeros(1, np.float32)},
    "a key more": {
        "min": np.zeros(1, np.float32),
        "max": np.zeros(1, np.float32),
        "mean": np.zeros(1, np.float32),
    },
    "dtype": {"min": np.zeros(1, np.float64), "max": np.zeros(1, np.float32)},
    "rank": {"min": np.zeros((), np.float32), "max": np.zeros((), np.float32)},
    "lengths": {"min": np.zeros(1, np.float32), "max": np.zeros(0, np.float32)},
    "channels per tensor": {"min": np.zeros(2, np.float32), "max": np.zeros(2, np.float32)},
    "order": {"min": np.ones(1, np.float32), "max": np.zeros(1, np.float32)},
    "NaN": {"min": np.full(1, np.nan, np.float32), "max": np.zeros(1, np.float32)},
    "no array": {"min": [0.0], "max": np.zeros(1, np.float32)},
}


@pytest.mark.parametrize("state", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_state_is_refused(state: dict[str, NDArray[np.float32]]) -> None:
    with pytest.raises(CalibrationError, match="damaged"):
        MinMax.from_state(state, None)
