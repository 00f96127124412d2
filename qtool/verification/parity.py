"""Does the exported file compute what the fake-quantized model computes?

Two runs of the file in ONNX Runtime are compared with the model in torch. As written (no
optimisation) the runtime does the same float32 operations, so that codes can differ only where a
value lies on a rounding boundary and the order of a float sum decides. Optimised, the runtime runs
its integer kernels, which round differently in places (the zero point inside the rounding of an
add, a product of three scales rounded once): each such code may be off by one, and the differences
travel through the layers behind it.

What is limited is the mean difference. A wrong scale, axis or bias moves all outputs by tens of
codes; rounding moves a few by a few, and how far the worst of them goes says more of the network
(deep, untrained ones amplify) than of the file. That the runtime computes exactly what it should is
shown by exact.py, with no tolerance at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.runtimes import Runtime
from qtool.runtimes.onnxruntime import ONNXRUNTIME
from qtool.verification.artefact import Artefact

__all__ = ["TOLERANCE", "Difference", "Parity", "compare"]

TOLERANCE = 8.0
"""Largest accepted mean difference, in output codes (1/255 of the output's range)."""

_CONSTANT = 1e-4  # of the largest value: an output that spans less is as good as constant

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Difference:
    """How far two sets of outputs are apart, in codes: 1/255 of the range of each output."""

    worst: float
    mean: float

    def __str__(self) -> str:
        return f"worst {self.worst:.2f}, mean {self.mean:.3f} codes"


@dataclass(frozen=True)
class Parity:
    """as_written: ONNX Runtime without optimisation. optimised: the runtime that the file is meant
    for, with its integer kernels; None where that cannot be asked here. runtime: its name and
    version, where it is not ONNX Runtime."""

    samples: int
    as_written: Difference
    optimised: Difference | None
    tolerance: float
    runtime: str = ""

    @property
    def passed(self) -> bool:
        found = [d.mean for d in (self.as_written, self.optimised) if d is not None]
        return max(found) <= self.tolerance

    @property
    def _optimiser(self) -> str:
        return f"in {self.runtime}" if self.runtime else "optimised"

    def __str__(self) -> str:
        optimised = f"; {self._optimiser} {self.optimised}" if self.optimised is not None else ""
        return (
            f"against fake quantization on {self.samples} samples: as written {self.as_written}"
            f"{optimised} (mean allowed: {self.tolerance:g})"
        )


def compare(
    file: Artefact | str | Path,
    inputs: Arrays,
    expected: Arrays,
    steps: Sequence[float | None],
    runtime: Runtime | None = ONNXRUNTIME,
) -> Parity:
    """Runs the file, as written and optimised, on one batch.

    Args:
        inputs: arrays in the order of the file's inputs.
        expected: outputs of the fake-quantized model.
        steps: per output, the size of a code (its scale), or None where the output is float.
        runtime: the one the file is meant for; None runs it as written only.
    """
    artefact = Artefact.of(file)
    written = artefact.run_as_written(inputs)
    if runtime is None:
        optimised = None
    elif runtime is ONNXRUNTIME:
        optimised = artefact.run(inputs)
    else:
        optimised = runtime.open(artefact.path)(inputs)
    samples = len(inputs[0]) if inputs and inputs[0].ndim else 1
    return Parity(
        samples,
        _difference(expected, written, steps),
        None if optimised is None else _difference(expected, optimised, steps),
        TOLERANCE,
        "" if runtime is None or runtime is ONNXRUNTIME else str(runtime),
    )


def _difference(expected: Arrays, actual: Arrays, steps: Sequence[float | None]) -> Difference:
    found = [np.zeros(1)]
    for a, b, step in zip(expected, actual, steps, strict=True):
        if a.dtype.kind == "f" and a.size:
            found.append(_codes_apart(a.astype(np.float64), b, step).ravel())
    joined = np.concatenate(found)
    return Difference(float(joined.max()), float(joined.mean()))


def _codes_apart(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], step: float | None
) -> np.ndarray[Any, Any]:
    """Infinite where one value is not finite, unless the other is the same: a mask of -inf, say."""
    finite = a[np.isfinite(a)]
    span, most = (float(np.ptp(finite)), float(np.abs(finite).max())) if finite.size else (0.0, 0.0)
    size = step or (span if span > most * _CONSTANT else most) / 255 or 1.0
    with np.errstate(invalid="ignore"):  # inf - inf
        apart = np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b) / size, np.inf)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart)
