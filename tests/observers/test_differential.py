"""The shared helpers fail when they should."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qtool.observers import Histogram, MinMax, MovingAverage
from tests.observers.differential import (
    assert_matches_oracle,
    assert_order_free,
    assert_same_state,
    observed,
    tensor,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(tensor([0, 1]), tensor([0, 2]), id="value"),
        pytest.param(tensor([0, 1]), tensor([]), id="shape"),
    ],
)
def test_same_state_sees_a_difference(one: torch.Tensor, other: torch.Tensor) -> None:
    with pytest.raises(AssertionError):
        assert_same_state(
            observed(lambda: MinMax(None), [one]), observed(lambda: MinMax(None), [other])
        )


def test_same_state_sees_another_dtype_key_and_sign_of_zero() -> None:
    class Odd(MinMax):
        arrays: dict[str, NDArray[Any]]

        def state(self) -> dict[str, NDArray[Any]]:
            return self.arrays

    plain = observed(lambda: MinMax(None), [tensor([0, 1])])
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    odd = Odd(None)
    rows = np.array([2])
    odd.arrays = {"min": zero, "max": one, "rows": rows}
    assert_same_state(odd, plain)
    different: list[dict[str, NDArray[Any]]] = [
        {"min": zero.astype(np.float64), "max": one, "rows": rows},
        {"low": zero, "max": one, "rows": rows},
        {"min": -zero, "max": one, "rows": rows},
    ]
    for arrays in different:
        odd.arrays = arrays
        with pytest.raises(AssertionError):
            assert_same_state(odd, plain)


def test_order_free_sees_a_statistic_that_depends_on_order() -> None:
    with pytest.raises(AssertionError):
        assert_order_free(lambda: MovingAverage(None), tensor([1, 2, 3]), [2, 0, 1], [1, 2])


def test_order_free_sees_a_merge_that_loses_data() -> None:
    class Forgetful(MinMax):
        def merge(self, other: object) -> None:
            pass

    with pytest.raises(AssertionError):
        assert_order_free(lambda: Forgetful(None), tensor([1, 2, 3]), [0, 1, 2], [1])


@pytest.mark.parametrize("key", ["exponent", "counts", "total", "min", "max"])
def test_oracle_sees_a_wrong_array(key: str) -> None:
    values = [-1.0, 0.25, 3.0]
    histogram = Histogram(None, bins=64)
    histogram.update(tensor(values))
    state = histogram.state()
    assert_matches_oracle(state, values)
    state[key][0] += 1
    with pytest.raises(AssertionError):
        assert_matches_oracle(state, values)
