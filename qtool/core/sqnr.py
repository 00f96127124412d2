"""The signal-to-quantization-noise ratio (SQNR): the one formula for decibels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NO_SIGNAL_DB = -200.0
"""SQNR of noise without signal, and of an output that is NaN or Inf."""


def decibels(signal: float, noise: float) -> float | None:
    """Return 10 log10(signal / noise) of sums of squares.

    None without noise; -200 without signal, or if a sum is not finite.
    """
    if noise == 0.0:
        return None
    if not (math.isfinite(signal) and math.isfinite(noise)):
        return NO_SIGNAL_DB
    return 10 * math.log10(signal / noise) if signal > 0 else NO_SIGNAL_DB


def sqnr(real: np.ndarray[Any, Any], quantized: np.ndarray[Any, Any]) -> float | None:
    """Return the SQNR of a tensor in dB, None without noise.

    Where the float model gives NaN or Inf, an equal value counts as no noise, any other as -200 dB.
    """
    same = (real == quantized) | (np.isnan(real) & np.isnan(quantized))
    signal, noise = real.astype(np.float64), np.zeros(real.shape)
    np.subtract(quantized, signal, out=noise, where=~same)
    if not np.isfinite(noise).all():
        return NO_SIGNAL_DB
    finite = signal[np.isfinite(signal)]
    return decibels(float(np.square(finite).sum()), float(np.square(noise).sum()))
