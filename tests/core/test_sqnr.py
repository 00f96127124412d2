"""Decibels of signal over noise, and what NaN, Inf and zeros are."""

import numpy as np
import pytest

from qtool.core.sqnr import NO_SIGNAL_DB, decibels, sqnr

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("signal", "noise", "expected"),
    [
        (100.0, 1.0, 20.0),
        (1.0, 0.0, None),
        (0.0, 0.0, None),
        (0.0, 1.0, -200.0),
        (INF, 1.0, NO_SIGNAL_DB),
        (1.0, INF, NO_SIGNAL_DB),
        (1.0, NAN, NO_SIGNAL_DB),
    ],
)
def test_decibels(signal: float, noise: float, expected: float | None) -> None:
    assert decibels(signal, noise) == expected


@pytest.mark.parametrize(
    ("real", "quantized", "expected"),
    [
        ([10.0, 0.0], [9.0, 0.0], 20.0),
        ([6.0, 8.0], [6.0, 7.0], 20.0),  # equal values are signal, too
        ([3.0, 4.0], [3.0, 4.0], None),
        ([10.0, NAN, INF], [9.0, NAN, INF], 20.0),
        ([10.0, NAN], [10.0, 1.0], NO_SIGNAL_DB),
        ([10.0, 1.0], [10.0, NAN], NO_SIGNAL_DB),
    ],
)
def test_sqnr(real: list[float], quantized: list[float], expected: float | None) -> None:
    assert sqnr(np.array(real), np.array(quantized)) == expected
