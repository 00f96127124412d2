"""Second moments: exact sums of products of integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qtool.errors import CalibrationError, DataError
from qtool.observers import CrossMoments, Moments, State, Statistic
from tests.observers.differential import QUICK, assert_order_free, assert_same_state

LARGEST = 2**15 - 1


def codes_of(x: torch.Tensor, step: float = 1.0) -> np.ndarray:
    """The rows as Python integers, which never overflow."""
    codes = np.clip(np.rint(x.double().numpy() / step), -LARGEST, LARGEST)
    return codes.reshape(-1, x.shape[-1]).astype(int).astype(object)


def moments_of(batches: Sequence[torch.Tensor], axis: int | None = -1, step: float = 1) -> Moments:
    moments = Moments(axis, step=step)
    for batch in batches:
        moments.update(batch)
    return moments


@pytest.mark.parametrize("size", [1, 127, 255, 256, 257, LARGEST, 10**9])
@pytest.mark.parametrize("rows", [1, 255, 257, 1500])
def test_sums_are_those_of_python_integers(size: int, rows: int) -> None:
    x = torch.randint(-size, size + 1, (rows, 5), generator=torch.Generator().manual_seed(rows))
    x[:, 0] = size  # sums as large as they get
    x[:, 1] = -size
    moments = moments_of([x.float(), x.float()])
    codes = codes_of(x.float())
    assert moments.sum.tolist() == (2 * codes.T @ codes).tolist()
    assert moments.rows == 2 * rows


def test_a_block_too_long_for_its_type_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((1001, 2), 255.0)
    x[0] = 1
    codes = codes_of(x)
    assert moments_of([x]).sum.tolist() == (codes.T @ codes).tolist()
    monkeypatch.setattr("qtool.observers.moments._BITS", ((torch.float32, 30), (torch.float64, 53)))
    assert moments_of([x]).sum.tolist() != (codes.T @ codes).tolist()


@QUICK
@given(st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=30), st.data())
def test_any_split_order_and_merging_give_one_state(
    values: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(values))))
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=4))
    x = torch.stack([torch.tensor(values), torch.tensor(values).relu(), 3 * torch.tensor(values)])
    for step in (1.0, 2.0**-10, 0.3):
        assert_order_free(partial(Moments, 0, step=step), x, order, cuts)
        assert_order_free(partial(CrossMoments, 0, step=step), x, order, cuts)


def test_values_are_rounded_half_to_even_and_clipped_to_16_bits() -> None:
    assert moments_of([torch.tensor([[0.5, 1.5, -2.5, 1e5]])]).sum[1].tolist() == [0, 4, -4, 65534]
    x = torch.randn(40, 3)
    codes = codes_of(x, 2.0**-12)
    fine = moments_of([x], step=2.0**-12)
    assert fine.sum.tolist() == (codes.T @ codes).tolist()
    expected = (x.double().T @ x.double()) / 40
    torch.testing.assert_close(fine.value(), expected, rtol=0, atol=2e-3)  # half a step times |x|
    huge = moments_of([torch.tensor([[3e38, -3e38]])], step=2.0**-100)
    assert huge.sum.tolist() == [[LARGEST**2, -(LARGEST**2)], [-(LARGEST**2), LARGEST**2]]


def test_features_lie_along_the_axis() -> None:
    x = torch.randint(-9, 9, (4, 3, 5, 6)).float()
    channels = moments_of([x], 1)
    assert_same_state(channels, moments_of([x], -3))
    assert_same_state(channels, moments_of([x.movedim(1, -1).reshape(-1, 3)], 1))
    assert moments_of([x], None).sum.tolist() == [[int((x * x).sum())]]
    assert moments_of([x[0, 0, 0]], 0).rows == 1


def test_cross_moments_are_those_of_both() -> None:
    x, y = torch.randint(-9, 9, (7, 3, 5)).float(), torch.randn(7, 4, 5)
    cross = CrossMoments(1, other_step=0.25)
    cross.update(x, y)
    cross.update(x[:2], y[:2])
    rows = [
        codes_of(t.movedim(1, -1), s) for t, s in ((x, 1), (y, 0.25), (x[:2], 1), (y[:2], 0.25))
    ]
    assert cross.sum.tolist() == (rows[0].T @ rows[1] + rows[2].T @ rows[3]).tolist()
    assert cross.value().tolist() == (cross.sum / cross.rows * 0.25).tolist()
    again = CrossMoments.from_state(cross.state(), 1, other_step=0.25)
    assert_same_state(again, cross)
    again.merge(cross)
    assert again.sum.tolist() == (2 * cross.sum).tolist()
    alone = CrossMoments(1)
    alone.update(x)
    assert alone.sum.tolist() == moments_of([x], 1).sum.tolist()


def test_rows_must_pair() -> None:
    cross = CrossMoments(-1)
    cross.update(torch.ones(3, 2), torch.ones(3, 4))
    for x, y, message in (
        (torch.ones(3, 2), torch.ones(4, 4), "do not pair"),
        (torch.ones(3, 2), torch.ones(3, 5), "5 channels"),
        (torch.ones(3, 1), torch.ones(3, 4), "1 channels"),
        (torch.ones(3, 2), torch.full((3, 4), torch.nan), "NaN"),
    ):
        with pytest.raises(DataError, match=message):
            cross.update(x, y)
    assert (cross.rows, cross.sum.tolist()) == (3, [[3] * 4] * 2)
    other = CrossMoments(-1)
    other.update(torch.ones(3, 2), torch.ones(3, 3))
    with pytest.raises(CalibrationError, match="cannot merge"):
        cross.merge(other)


def test_no_data_has_no_moments() -> None:
    with pytest.raises(CalibrationError, match="no data"):
        Moments(-1).value()


def test_more_rows_than_an_integer_can_sum_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtool.observers.moments._MOST", 5)
    moments = moments_of([torch.ones(5, 2)])
    with pytest.raises(CalibrationError, match="more than 5"):
        moments.update(torch.ones(1, 2))
    assert (moments.rows, moments.sum.tolist()) == (5, [[5, 5], [5, 5]])


def _set(key: str, value: Sequence[int]) -> Callable[[State], None]:
    def damage(state: State) -> None:
        state[key] = np.array(value, np.int64)

    return damage


DAMAGE = {
    "a key less": lambda state: state.pop("sum"),
    "two counts": _set("rows", [3, 3]),
    "a negative count": _set("rows", [-1]),
    "no rows": _set("rows", [0]),
    "rank 1": _set("shape", [2]),
    "no feature": _set("shape", [0, 2]),
    "other features": _set("shape", [3, 3]),
    "not square": _set("shape", [1, 9]),
    "more than the rows allow": _set("sum", [3 * LARGEST**2 + 1, 1, 1]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("kind", [Moments, CrossMoments])
def test_a_damaged_state_is_refused(
    kind: type[Moments | CrossMoments], damage: Callable[[State], None]
) -> None:
    moments: Statistic = kind(-1)
    moments.update(torch.ones(3, 2))
    state = moments.state()
    kind.from_state(state, -1)
    damage(state)
    with pytest.raises(CalibrationError, match="damaged"):
        kind.from_state(state, -1)


def test_squares_are_not_negative() -> None:
    state = moments_of([torch.ones(3, 2)]).state()
    state["sum"][0] = -1
    with pytest.raises(CalibrationError, match="negative sum of squares"):
        Moments.from_state(state, -1)
