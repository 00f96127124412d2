"""Observers of extremes: min-max and moving average."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qtool.core.errors import CalibrationError
from qtool.observers import MinMax, MovingAverage, State
from tests.observers.differential import QUICK, VALUES, assert_order_free, observed, tensor


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


BATCHES = st.lists(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=4), min_size=1, max_size=8
)
MOMENTA = st.sampled_from([0.0, 0.5, 0.9, 0.99])


def test_the_recurrence_by_hand() -> None:
    statistic = observed(
        lambda: MovingAverage(None, momentum=0.75),
        [tensor([-4, 8]), tensor([0, 4]), tensor([-8, 8])],
    )
    low, high = statistic.extent()
    assert low.item() == 0.75 * (0.75 * -4 + 0.25 * 0) + 0.25 * -8
    assert high.item() == 0.75 * (0.75 * 8 + 0.25 * 4) + 0.25 * 8


@QUICK
@given(BATCHES, BATCHES, BATCHES, MOMENTA)
def test_merging_is_seeing_one_after_the_other(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], momentum: float
) -> None:
    def made(batches: list[list[float]]) -> MovingAverage:
        statistic = MovingAverage(None, momentum=momentum)
        for batch in batches:
            statistic.update(tensor(batch))
        return statistic

    whole, merged, last = made(a + b + c), made(a), made(b)
    last.merge(made(c))
    merged.merge(last)
    expected, actual = whole.state(), merged.state()
    assert actual["batches"] == expected["batches"]
    largest = max(abs(v) for batch in a + b + c for v in batch)
    for key in ("min", "max", "first_min", "first_max"):
        np.testing.assert_allclose(actual[key], expected[key], rtol=0, atol=1e-14 * largest)
    assert actual["min"] <= actual["max"]


def test_order_matters() -> None:
    batches = [tensor([1.0]), tensor([2.0])]
    one = observed(lambda: MovingAverage(None), batches)
    other = observed(lambda: MovingAverage(None), batches[::-1])
    assert one.extent() != other.extent()


def test_channels_are_averaged_apart() -> None:
    statistic = observed(
        lambda: MovingAverage(0, momentum=0.5), [torch.tensor([[1.0], [10.0]]), torch.zeros(2, 1)]
    )
    assert statistic.extent()[1].tolist() == [0.5, 5.0]


def _set(key: str, value: object) -> Callable[[State], None]:
    return lambda state: state.update({key: np.asarray(value)})


DAMAGE = {
    "a key less": lambda state: state.pop("batches"),
    "batches below zero": _set("batches", [-1]),
    "no batches, but channels": _set("batches", [0]),
    "two counts": _set("batches", [1, 1]),
    "a float count": _set("batches", [1.0]),
    "first of other length": _set("first_min", [0.0, 0.0]),
    "Inf": _set("first_max", [np.inf]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_average_is_refused(damage: Callable[[State], None]) -> None:
    state = observed(lambda: MovingAverage(None), [tensor([1, 2])]).state()
    MovingAverage.from_state(state, None)
    damage(state)
    with pytest.raises(CalibrationError, match="damaged"):
        MovingAverage.from_state(state, None)
