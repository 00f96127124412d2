"""Comparison of the outputs of an exported file with those of the fake-quantized model.

The file runs twice in ONNX Runtime. As written (no optimisation) the runtime does the same float32
operations as torch, so codes differ only where a value lies on a rounding boundary and the order of
a float sum decides. Optimised, the runtime runs its integer kernels, which round differently in
places (the zero point inside the rounding of an add, a product of three scales rounded once): each
such code may be off by one, and the differences grow through later layers. The difference of the
outputs then says more about the network (deep, untrained ones amplify) than about the file.

So the outputs are printed, but nodes decide (`node_parity`). If the runtime matches the integer
engine exactly (`bit_exactness`), outputs need no limit. Otherwise, for other runtimes and for float
parts that are fused differently, the mean difference of the outputs has a limit. A wrong scale,
axis or bias moves all outputs by tens of codes; rounding moves a few by a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qtool.core.number_texts import quantity
from qtool.core.types import Array

_NAMED = 3  # nodes in a sentence


@dataclass(frozen=True)
class NodeParity:
    """Result of comparing a file with the plan, node by node.

    Attributes:
        samples: number of samples used.
        compared: number of points, outputs and kernels compared.
        wrong: those that give something else, each with the difference.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("passed",)

    samples: int
    compared: int
    wrong: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        text = f"node by node ({quantity(self.samples, 'sample')}): "
        if self.passed:
            return f"{text}all {self.compared} comparisons match the plan"
        more = f" and {len(self.wrong) - _NAMED} more" if len(self.wrong) > _NAMED else ""
        named = ", ".join(self.wrong[:_NAMED])
        return f"{text}{len(self.wrong)} of {self.compared} differ from the plan: {named}{more}"


Arrays = Sequence[Array]

TOLERANCE = 8.0
"""Largest accepted mean difference of outputs, in codes (1/255 of the output's range)."""


_CONSTANT = 1e-4  # of the largest value: an output with a smaller range counts as constant


@dataclass(frozen=True)
class Difference:
    """Difference of two sets of outputs in codes, 1/255 of the range of each output.

    Attributes:
        worst: the largest difference.
        mean: the mean difference.
    """

    worst: float
    mean: float

    @classmethod
    def largest(cls, parts: Sequence[Difference]) -> Difference:
        """Return the largest figures of several comparisons."""
        return cls(max(part.worst for part in parts), max(part.mean for part in parts))

    def __str__(self) -> str:
        return f"max {self.worst:.2f}, mean {self.mean:.3f} codes"


@dataclass(frozen=True)
class Parity:
    """Comparison of a file with the fake-quantized model.

    Attributes:
        samples: number of samples.
        as_written: outputs of ONNX Runtime without optimisation.
        optimised: outputs of the target's runtime with its integer kernels; None if it is not on
            this machine.
        tolerance: limit of the mean difference; None if outputs have no limit.
        runtime: name and version of the runtime; empty for ONNX Runtime.
        steps: comparison node by node, on the samples of `as_written`.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("passed",)

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

    @classmethod
    def joined(cls, parts: Sequence[Parity]) -> Parity:
        """Return the comparison of a file whose parts were compared one by one."""
        judged = [part for part in parts if part.tolerance is not None] or parts
        optimised = [part.optimised for part in judged if part.optimised is not None]
        steps = [part.steps for part in parts if part.steps is not None]
        return cls(
            min(part.samples for part in parts),
            Difference.largest([part.as_written for part in judged]),
            Difference.largest(optimised) if optimised else None,
            judged[0].tolerance,
            parts[0].runtime,
            NodeParity(
                min(step.samples for step in steps),
                sum(step.compared for step in steps),
                tuple(name for step in steps for name in step.wrong),
            )
            if steps
            else None,
        )

    def __str__(self) -> str:
        written = self.samples if self.steps is None else self.steps.samples
        samples = quantity(written, "sample")
        parts = [f"without runtime optimization ({samples}): {self.as_written}"]
        if self.optimised is not None:
            runtime = f"in {self.runtime} " if self.runtime else ""
            parts.insert(0, f"{runtime}({quantity(self.samples, 'sample')}): {self.optimised}")
        allowed = "" if self.tolerance is None else f" (mean allowed: {self.tolerance:g})"
        steps = "" if self.steps is None else f"\n{self.steps}"
        return f"difference from fake quantization {'; '.join(parts)}{allowed}{steps}"


def difference(expected: Arrays, actual: Arrays, steps: Sequence[float | None]) -> Difference:
    """Return the difference of float outputs in codes.

    Args:
        expected: the outputs to compare with.
        actual: the other outputs.
        steps: size of a code of each output, None for 1/255 of its range.
    """
    differences = [np.zeros(1)]
    for a, b, step in zip(expected, actual, steps, strict=True):
        if a.dtype.kind == "f" and a.size:
            differences.append(_in_codes(a.astype(np.float64), b, step).ravel())
    joined = np.concatenate(differences)
    return Difference(float(joined.max()), float(joined.mean()))


def _in_codes(a: Array, b: Array, step: float | None) -> Array:
    """Return the absolute differences in codes.

    Infinite for another shape, and where a value is not finite and the two are not equal.
    """
    if a.shape != b.shape:
        return np.full(1, np.inf)
    finite = a[np.isfinite(a)]
    span, most = (float(np.ptp(finite)), float(np.abs(finite).max())) if finite.size else (0.0, 0.0)
    size = step or (span if span > most * _CONSTANT else most) / 255 or 1.0
    with np.errstate(invalid="ignore"):  # inf - inf
        codes = np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b) / size, np.inf)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, codes)
