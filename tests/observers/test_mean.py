"""The mean: no rounding before the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qtool.core.errors import CalibrationError
from qtool.observers import Mean, State
from tests.observers.differential import QUICK, VALUES, assert_order_free, tensor


def mean_of(batches: Sequence[torch.Tensor], axis: int | None = None) -> Mean:
    mean = Mean(axis)
    for batch in batches:
        mean.update(batch)
    return mean


def exact(values: Sequence[float]) -> float:
    return float(sum(map(Fraction, values), Fraction(0)) / len(values))


@QUICK
@given(VALUES)
def test_the_mean_is_that_of_exact_fractions(values: list[float]) -> None:
    assert mean_of([tensor(values)]).value().item() == exact(tensor(values).tolist())


@QUICK
@given(VALUES, st.data())
def test_any_split_order_and_merging_give_one_state(
    values: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(values))))
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=4))
    assert_order_free(lambda: Mean(None), tensor(values), order, cuts)
    rows = torch.stack([tensor(values), tensor(values).clamp(-1, 1), tensor(values).relu()])
    assert_order_free(lambda: Mean(0), rows, order, cuts)


def test_float_sums_that_cancel() -> None:
    assert mean_of([tensor([3e38, 1.0, -3e38, 1e-45])]).value() == (1 + 2.0**-149) / 4
    assert mean_of([tensor([2.0**24, 1.0, 1.0])]).value() == (2**24 + 2) / 3


@pytest.mark.parametrize("rows", [2, 1000])
def test_channels_are_the_means_of_their_slices(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtool.observers.mean._ROWS", rows)
    monkeypatch.setattr("qtool.observers.statistic.CHUNK", 30)
    x = torch.randn(4, 5, 11) * 10.0 ** torch.arange(-4, 1)[:, None]
    found = mean_of([x, 3 * x], 1).value()
    assert found.dtype == torch.float64
    assert found.tolist() == [mean_of([x[:, c], 3 * x[:, c]]).value() for c in range(5)]
    both = [*x[:, 2].flatten().tolist(), *(3 * x[:, 2]).flatten().tolist()]
    assert found[2] == exact(both)


def test_no_data_has_no_mean() -> None:
    with pytest.raises(CalibrationError, match="no data"):
        Mean(None).value()


def test_more_elements_than_an_integer_can_sum_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtool.observers.mean._MAX_COUNT", 5)
    mean = mean_of([torch.ones(5)])
    with pytest.raises(CalibrationError, match="more than 5"):
        mean.update(torch.ones(1))
    assert mean.count.tolist() == [5]


def _set(key: str, value: Sequence[int]) -> Callable[[State], None]:
    def damage(state: State) -> None:
        state[key] = np.array(value, np.int64)

    return damage


DAMAGE = {
    "a key less": lambda state: state.pop("sum"),
    "no element": _set("count", [0]),
    "another channel": _set("count", [2, 1]),
    "a term more": _set("terms", [3]),
    "a negative number of terms": _set("terms", [-1]),
    "exponents out of order": _set("exponent", [128, 127]),
    "an exponent twice": _set("exponent", [127, 127]),
    "the exponent of Inf": _set("exponent", [127, 255]),
    "a negative exponent": _set("exponent", [-1, 128]),
    "an empty term": _set("sum", [0, 1]),
    "more than the count allows": _set("sum", [1, (2 << 24) + 1]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_state_is_refused(damage: Callable[[State], None]) -> None:
    state = mean_of([tensor([1.5, -3.0])]).state()
    assert state["exponent"].tolist() == [127, 128]
    Mean.from_state(state, None)
    damage(state)
    with pytest.raises(CalibrationError, match="damaged"):
        Mean.from_state(state, None)
