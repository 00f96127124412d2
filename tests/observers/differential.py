"""Data and comparisons the observers' tests share."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qtool.observers import Statistic

QUICK = settings(deadline=None, derandomize=True, database=None, max_examples=60)

ORDINARY = st.floats(-8, 8, width=32)
ANY = st.floats(width=32, allow_nan=False, allow_infinity=False)  # subnormal to largest
POWERS = st.builds(  # ends of bins, over the whole range of float32
    lambda sign, e: sign * 2.0**e, st.sampled_from([-1.0, 0.0, 1.0]), st.integers(-149, 127)
)
VALUES = st.one_of(
    st.lists(ORDINARY, min_size=1, max_size=40),
    st.lists(st.one_of(ORDINARY, ANY, POWERS), min_size=1, max_size=40),
)


def tensor(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def assert_same_state(actual: Statistic, expected: Statistic) -> None:
    """The states are equal to the byte: keys, dtypes, shapes, values."""
    a, b = actual.state(), expected.state()
    assert list(a) == list(b)
    for key, array in b.items():
        assert (a[key].dtype, a[key].shape) == (array.dtype, array.shape), key
        assert a[key].tobytes() == array.tobytes(), (key, a[key], array)


def observed(make: Callable[[], Statistic], batches: Sequence[torch.Tensor]) -> Statistic:
    statistic = make()
    for batch in batches:
        statistic.update(batch)
    return statistic


def assert_order_free(
    make: Callable[[], Statistic], x: torch.Tensor, order: Sequence[int], cuts: Sequence[int]
) -> None:
    """One batch, reordered batches, and batches merged from both sides give one state.

    `order` permutes the last axis of `x`; `cuts` are positions to cut the permuted one at.
    """
    whole = observed(make, [x])
    ends = sorted({c % (x.shape[-1] + 1) for c in cuts})
    batches = list(x[..., list(order)].tensor_split(ends, dim=-1))
    assert_same_state(observed(make, batches), whole)
    parts = [observed(make, [batch]) for batch in batches]
    left = make()
    for part in parts:
        left.merge(part)
    assert_same_state(left, whole)
    while len(parts) > 1:  # from the right: a tree of another shape
        last = parts.pop()
        parts[-1].merge(last)
    assert_same_state(parts[0], whole)


def histogram_oracle(values: Sequence[float], bins: int) -> tuple[int, int, list[int]]:
    """Exponent, first bin and counts, by exact fractions and counting one by one."""
    exact = [Fraction(v) for v in values]
    low, high = min(*exact, Fraction(0)), max(*exact, Fraction(0))

    def index(v: Fraction, k: int) -> int:
        return floor(v / Fraction(2) ** k)

    k = -80
    while index(high, k) - index(low, k) > bins:
        k += 1
    first = index(low, k)
    counts = [0] * (index(high, k) - first + 1)
    for v in exact:
        counts[index(v, k) - first] += 1
    return k, first, counts


def assert_matches_oracle(state: Mapping[str, NDArray[Any]], values: Sequence[float]) -> None:
    """A per-tensor histogram state with 64 bins is what exact fractions give for `values`."""
    k, _, counts = histogram_oracle(values, 64)
    assert state["exponent"].tolist() == [k]
    assert state["counts"].tolist() == counts
    assert state["total"].tolist() == [len(values)]
    assert state["min"].tolist() == [np.float32(min(values))]
    assert state["max"].tolist() == [np.float32(max(values))]
