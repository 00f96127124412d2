"""Counts of identical values: nothing differs unseen, nothing equal counts as different."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.core.errors import DataError
from qtool.verification.exactness import CodeCounts


def test_identical_values_are_counted_over_batches() -> None:
    counts = CodeCounts()
    codes = np.array([[1, 2, 3]], np.int8)
    assert counts.add_output(codes, codes, 0.0)
    assert not counts.add_output(codes, codes + np.int8(1), 1.0)
    counts.add_samples([codes])
    counts.add_samples([np.zeros((2, 3))])
    assert counts.figures() == (3, 6, 3, 1.0)


def test_nan_equals_nan() -> None:
    counts = CodeCounts()
    values = np.array([np.nan, 1.0], np.float32)
    assert counts.add_output(values, values, 0.0)
    assert not counts.add_output(values, np.array([0.0, 1.0], np.float32), np.inf)
    assert (counts.elements, counts.identical, counts.worst) == (4, 3, np.inf)


@pytest.mark.parametrize("shape", [(2, 1), (3,), (0,)])
def test_nothing_is_equal_in_another_shape(shape: tuple[int, ...]) -> None:
    counts = CodeCounts()
    assert not counts.add_output(np.zeros(2), np.zeros(shape), np.inf)
    assert (counts.elements, counts.identical) == (2, 0)


def test_no_data_is_no_success() -> None:
    with pytest.raises(DataError, match="nothing was compared"):
        CodeCounts().figures()
