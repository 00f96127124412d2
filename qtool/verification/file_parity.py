"""Does the exported file compute what the fake-quantized model computes?

Two runs of the file in ONNX Runtime are compared with the model in torch. As written (no
optimisation) the runtime does the same float32 operations, so that codes can differ only where a
value lies on a rounding boundary and the order of a float sum decides. Optimised, the runtime runs
its integer kernels, which round differently in places (the zero point inside the rounding of an
add, a product of three scales rounded once): each such code may be off by one, and the differences
travel through the layers behind it, so that how far the outputs go says more of the network (deep,
untrained ones amplify) than of the file.

So outputs are shown, and steps are judged: see by_step.py. Where the runtime does exactly what the
integer engine does (exact.py), nothing is left to be judged by outputs. Where that is not known, of
other runtimes and of parts in float that are fused otherwise than in the engine, the mean
difference of the outputs has a limit, too. A wrong scale, axis or bias moves all outputs by tens of
codes; rounding moves a few by a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.backends.runtime import Runtime
from qtool.verification.exported_file import ExportedFile
from qtool.verification.node_parity import NodeParity

TOLERANCE = 8.0
"""Largest accepted mean difference of outputs, in codes (1/255 of the output's range), where
nothing better is known."""

_CONSTANT = 1e-4  # of the largest value: an output that spans less is as good as constant

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Difference:
    """How far two sets of outputs are apart, in codes: 1/255 of the range of each output."""

    worst: float
    mean: float

    def __str__(self) -> str:
        return f"max {self.worst:.2f}, mean {self.mean:.3f} codes"


@dataclass(frozen=True)
class Parity:
    """as_written: ONNX Runtime without optimisation. optimised: the runtime that the file is meant
    for, with its integer kernels; None where that cannot be asked here. runtime: its name and
    version, where it is not ONNX Runtime. tolerance: of the mean difference, where outputs are
    judged. steps: each step by itself, on the samples that the file was run on as written."""

    samples: int
    as_written: Difference
    optimised: Difference | None
    tolerance: float | None
    runtime: str = ""
    steps: NodeParity | None = None

    @property
    def passed(self) -> bool:
        if self.steps is not None and not self.steps.passed:
            return False
        if self.tolerance is None:
            return True
        judged = [self.optimised, self.as_written if self.steps is None else None]
        return all(d.mean <= self.tolerance for d in judged if d is not None)

    def __str__(self) -> str:
        written = self.samples if self.steps is None else self.steps.samples
        parts = [f"without runtime optimization ({written} samples): {self.as_written}"]
        if self.optimised is not None:
            runtime = f"in {self.runtime} " if self.runtime else ""
            parts.insert(0, f"{runtime}({self.samples} samples): {self.optimised}")
        allowed = "" if self.tolerance is None else f" (mean allowed: {self.tolerance:g})"
        steps = "" if self.steps is None else f"\n{self.steps}"
        return f"difference from fake quantization {'; '.join(parts)}{allowed}{steps}"


def check_parity(
    file: ExportedFile | str | Path,
    inputs: Arrays,
    expected: Arrays,
    steps: Sequence[float | None],
    runtime: Runtime | None = ONNXRUNTIME,
    written: tuple[Arrays, Arrays] | None = None,
) -> Parity:
    """Runs the file, as written and optimised, on one batch.

    Args:
        inputs: arrays in the order of the file's inputs.
        expected: outputs of the fake-quantized model.
        steps: per output, the size of a code (its scale), or None where the output is float.
        runtime: the one the file is meant for; None runs it as written only.
        written: outputs that were expected and found as written, of another batch than this one,
            where the file was run so already.
    """
    exported = ExportedFile.of(file)
    reference, plain = written or (expected, exported.run_as_written(inputs))
    if runtime is None:
        optimised = None
    elif runtime is ONNXRUNTIME:
        optimised = exported.run(inputs)
    else:
        optimised = runtime.run(exported.path, inputs)
    samples = len(inputs[0]) if inputs and inputs[0].ndim else 1
    return Parity(
        samples,
        _difference(reference, plain, steps),
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
    """Infinite where one value is not finite, unless the other is the same (a mask of -inf, say),
    and of another size."""
    if a.shape != b.shape:
        return np.full(1, np.inf)
    finite = a[np.isfinite(a)]
    span, most = (float(np.ptp(finite)), float(np.abs(finite).max())) if finite.size else (0.0, 0.0)
    size = step or (span if span > most * _CONSTANT else most) / 255 or 1.0
    with np.errstate(invalid="ignore"):  # inf - inf
        apart = np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b) / size, np.inf)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart)
