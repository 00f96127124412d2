"""Errors of the outputs of a quantized model, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.core.sqnr import decibels
from qtool.core.types import Array


@dataclass(frozen=True, eq=False)
class OutputErrors:
    """Powers of float outputs and of their errors, sample by sample.

    Attributes:
        outputs: names of the float outputs, in the model's order.
        signal: float64 [outputs, samples], the sum of squares; [outputs, batches] where an output
            does not have one row per sample.
        noise: likewise, of the differences; NaN where values decide the shape.
        samples: number of samples.
    """

    outputs: tuple[str, ...]
    signal: Array
    noise: Array
    samples: int

    @classmethod
    def of(
        cls, names: Sequence[str], real: Sequence[Array], actual: Sequence[Array], samples: int
    ) -> OutputErrors:
        """Return the errors for one batch. Values that are not finite in float are left out."""
        chosen = [i for i, a in enumerate(real) if a.dtype.kind == "f"]
        rows = all(real[i].ndim and len(real[i]) == samples for i in chosen)
        count = samples if rows and chosen else 1
        signal, noise = np.zeros((len(chosen), count)), np.zeros((len(chosen), count))
        for k, i in enumerate(chosen):
            expected = real[i].astype(np.float64)
            finite = np.isfinite(expected)
            signal[k] = _power(np.where(finite, expected, 0), count)
            if real[i].shape != actual[i].shape:
                noise[k] = np.nan
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.where(finite, expected - actual[i], 0)
                noise[k] = np.nan_to_num(_power(error, count), nan=np.inf)
        return cls(tuple(names[i] for i in chosen), signal, noise, samples)

    @classmethod
    def joined(cls, parts: Sequence[OutputErrors]) -> OutputErrors:
        """Return the errors of several batches as one."""
        signal = np.concatenate([p.signal for p in parts], 1)
        noise = np.concatenate([p.noise for p in parts], 1)
        return cls(parts[0].outputs, signal, noise, sum(p.samples for p in parts))

    def pooled(self) -> list[float | None]:
        """Return the SQNR of each output over all samples in dB, None without noise."""
        sums = zip(self.signal.sum(1), self.noise.sum(1), strict=True)
        return [decibels(float(s), float(n)) for s, n in sums]

    def by_sample(self) -> Array:
        """Return the SQNR of each output on each sample in dB, infinite without noise."""
        pairs = zip(self.signal.ravel(), self.noise.ravel(), strict=True)
        each = [finite_or_inf(decibels(float(s), float(n))) for s, n in pairs]
        return np.array(each).reshape(self.signal.shape)

    def relative(self) -> Array:
        """Return the share of each sample in the error over all outputs, [samples]."""
        power = np.maximum(self.signal.sum(1, keepdims=True), np.finfo(float).tiny)
        shares: Array = np.nan_to_num(self.noise / power, nan=0.0, posinf=1e300).sum(0)
        total = shares.sum()
        return shares / total if total else shares


def samples_first(output: Array, samples: int) -> Array:
    """Return an output [positions, samples, width], as recurrent layers give it, with the samples
    in front; others as they are.

    Args:
        output: output of one batch, of any shape.
        samples: number of samples of the batch.
    """
    turned = output.ndim == 3 and len(output) != samples == output.shape[1]
    return output.swapaxes(0, 1) if turned else output


def _power(values: Any, count: int) -> Array:
    power: Array = np.square(values).reshape(count, -1).sum(1)
    return power


def finite_or_inf(value: float | None) -> float:
    """Return dB as a number: without noise they are infinite."""
    return math.inf if value is None else value
