"""The histogram: exact counts, independent of how the data came."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qtool.core.errors import CalibrationError
from qtool.observers import Histogram, State
from tests.observers.differential import (
    QUICK,
    VALUES,
    assert_matches_oracle,
    assert_order_free,
    assert_same_state,
    observed,
    tensor,
)

SUBNORMAL = 2.0**-149
LARGEST = float(np.finfo(np.float32).max)

CASES = {
    "all zero": [0.0, 0.0, -0.0],
    "one constant": [5.0] * 4,
    "negative only": [-3.0, -2.5, -1e-3],
    "subnormal": [SUBNORMAL, -SUBNORMAL, 3 * SUBNORMAL],
    "a negative subnormal among the largest": [-SUBNORMAL, LARGEST, 1.0],
    "tiny and negative under a large exponent": [-1e-30, 1e30],
    "the largest of both signs": [-LARGEST, LARGEST],
    "ends on the edge of a bin": [0.0, 1.0],
    "both ends on an edge": [-1.0, 1.0],
    "just under the edge": [0.0, float(np.nextafter(np.float32(1), np.float32(0)))],
    "two bins from an odd one, then a coarser grid": [-63.0, -62.0, 63.0],
    "many magnitudes": [10.0**e for e in range(-44, 39)],
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_growth_value_by_value_is_exact(values: list[float]) -> None:
    batches = tensor(values).split(1)
    whole = observed(lambda: Histogram(None, bins=64), [tensor(values)])
    assert_matches_oracle(whole.state(), tensor(values).tolist())
    assert_same_state(observed(lambda: Histogram(None, bins=64), batches), whole)
    assert_same_state(observed(lambda: Histogram(None, bins=64), batches[::-1]), whole)


@QUICK
@given(VALUES)
def test_counts_are_those_of_exact_fractions(values: list[float]) -> None:
    statistic = observed(lambda: Histogram(None, bins=64), [tensor(values)])
    assert_matches_oracle(statistic.state(), values)


@QUICK
@given(VALUES, st.data())
def test_any_split_order_and_merging_give_one_state(
    values: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(values))))
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=4))
    assert_order_free(lambda: Histogram(None, bins=64), tensor(values), order, cuts)
    rows = torch.stack([tensor(values), tensor(values).clamp(-1, 1), tensor(values).relu()])
    assert_order_free(lambda: Histogram(0, bins=64), rows, order, cuts)


def histogram_of(batches: list[torch.Tensor], axis: int | None, bins: int = 2048) -> Histogram:
    statistic = Histogram(axis, bins=bins)
    for batch in batches:
        statistic.update(batch)
    return statistic


@pytest.mark.parametrize("factor", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_channels_are_the_histograms_of_their_slices(factor: float, dtype: torch.dtype) -> None:
    x = (torch.randn(6, 5, 40, dtype=torch.float64) * factor).to(dtype)
    x[:, 1].relu_()
    x[:, 2] = 0
    x[:, 3] *= 1e-3
    together = histogram_of([x, 3 * x], -2)
    for c, bins in enumerate(together.channel_bins()):
        (alone,) = histogram_of([x[:, c], 3 * x[:, c]], None).channel_bins()
        assert (bins.low, bins.high) == (alone.low, alone.high)
        assert np.array_equal(bins.counts, alone.counts)
        assert np.array_equal(bins.edges, alone.edges)


def test_bins_cover_zero_and_the_values_and_know_their_edges() -> None:
    (bins,) = histogram_of([tensor([0.0, 1.0])], None, bins=64).channel_bins()
    assert bins.edges.tolist() == [i / 64 for i in range(66)]
    assert bins.counts.nonzero()[0].tolist() == [0, 64]


@pytest.mark.parametrize("axis", [None, 1])
def test_pieces_do_not_show(axis: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 50, 11)
    whole = observed(lambda: Histogram(axis), [x])
    seen: list[int] = []
    count = Histogram._count

    def spy(self: Histogram, piece: torch.Tensor, *rest: object) -> object:
        seen.append(piece.numel())
        return count(self, piece, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Histogram, "_count", spy)
    monkeypatch.setattr("qtool.observers.statistic.CHUNK", 100)
    monkeypatch.setattr("qtool.observers.histogram._COUNTERS", 7 * 2049)
    assert_same_state(observed(lambda: Histogram(axis), [x]), whole)
    assert sum(seen) == x.numel()
    assert max(seen) <= 100


def _set(key: str, index: int, value: float) -> Callable[[State], None]:
    def damage(state: State) -> None:
        state[key][index] = value

    return damage


def _shorten(state: State) -> None:
    state["counts"] = state["counts"][:-1]


def _lend(state: State) -> None:  # the sum stays
    state["counts"][5] -= 1
    state["counts"][6] += 1


DAMAGE = {
    "a key less": lambda state: state.pop("counts"),
    "counts of another dtype": lambda state: state.update(counts=state["counts"].astype(np.int32)),
    "another rank": lambda state: state.update(counts=state["counts"][None]),
    "too short": _shorten,
    "a negative count": _lend,
    "counts that do not sum": _set("counts", 5, 1),
    "another total": _set("total", 0, 5),
    "another exponent": _set("exponent", 0, 0),
    "minimum above maximum": _set("min", 0, 9),
    "NaN": _set("max", 0, np.nan),
    "another channel": lambda state: state.update(total=np.array([2, 1])),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_state_is_refused(damage: Callable[[State], None]) -> None:
    state = observed(lambda: Histogram(None), [tensor([-1, 0.3, 2])]).state()
    Histogram.from_state(state, None)
    damage(state)
    with pytest.raises(CalibrationError, match="damaged"):
        Histogram.from_state(state, None)
