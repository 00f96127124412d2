"""Whether the integer engine and a runtime agree: every code, with tolerance zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qtool.core.errors import DataError
from qtool.core.number_texts import part, percent, quantity
from qtool.core.option_names import describe_profile
from qtool.core.records import JsonRecord
from qtool.core.remedies import DataEdit
from qtool.core.types import Array


@dataclass
class CodeCounts:
    """Identical output values of the integer engine and a runtime, batch by batch.

    Attributes: see `Exactness`.
    """

    samples: int = 0
    elements: int = 0
    identical: int = 0
    worst: float = 0.0

    def add_samples(self, batch: Sequence[Array]) -> None:
        """Count the samples of a batch."""
        self.samples += len(batch[0]) if batch and batch[0].ndim else 1

    def add_output(self, expected: Array, actual: Array, difference: float) -> bool:
        """Count the values of an output; return whether all are identical.

        Args:
            expected, actual: values of the runtime and of the engine; NaN equals NaN, and nothing
                is equal in arrays of different shapes.
            difference: the largest one, in codes.
        """
        same = 0
        if expected.shape == actual.shape:
            equal = expected == actual
            if expected.dtype.kind == actual.dtype.kind == "f":
                equal |= np.isnan(expected) & np.isnan(actual)
            same = int(equal.sum())
        self.elements += expected.size
        self.identical += same
        self.worst = max(self.worst, difference)
        return same == expected.size == actual.size

    def figures(self) -> tuple[int, int, int, float]:
        """Return samples, elements, identical values and the largest difference.

        Raises:
            DataError: there was no sample.
        """
        if not self.samples:
            raise DataError(
                "the data is empty, so nothing was compared", DataEdit("give at least one sample")
            )
        return self.samples, self.elements, self.identical, self.worst


@dataclass(frozen=True)
class Exactness(JsonRecord):
    """Result of comparing the integer engine with ONNX Runtime.

    Attributes:
        samples: number of samples.
        elements: number of output values compared.
        identical: number of them that are identical to the last bit.
        worst: largest difference, in codes; of float outputs in 1/255 of the range.
        first: the first tensor of the graph whose codes differ.
        float_steps: number of nodes that both run in ONNX Runtime; fused, they may round otherwise.
        wrong: differences that no float node explains: outputs that depend on none, and integer
            kernels that give other codes than the runtime for the runtime's own inputs.
        profile: the numerics profile of the engine.
        runtime: the runtime that the engine is compared with.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("share", "exact", "passed")

    samples: int
    elements: int
    identical: int
    worst: float
    first: str | None
    float_steps: int
    wrong: tuple[str, ...] = ()
    profile: str = ""
    runtime: str = "ONNX Runtime"

    @classmethod
    def joined(cls, parts: Sequence[Exactness]) -> Exactness:
        """Return the comparison of a file whose parts were compared one by one."""
        return cls(
            min(part.samples for part in parts),
            sum(part.elements for part in parts),
            sum(part.identical for part in parts),
            max(part.worst for part in parts),
            next((part.first for part in parts if part.first), None),
            sum(part.float_steps for part in parts),
            tuple(name for part in parts for name in part.wrong),
            parts[0].profile,
            parts[0].runtime,
        )

    @property
    def passed(self) -> bool:
        """Whether every integer kernel is exact: differences come from float nodes only."""
        return not self.wrong and (self.exact or self.float_steps > 0)

    @property
    def share(self) -> float:
        """Share of identical output values, 0 to 1."""
        return self.identical / self.elements if self.elements else 1.0

    @property
    def exact(self) -> bool:
        """Whether all output values are identical."""
        return self.identical == self.elements

    @property
    def rounding(self) -> str:
        """How float nodes differ, after "verified"; empty where all values are identical."""
        if self.exact:
            return ""
        difference = f"float nodes differ in the last bits, by {self.worst:.2g} codes"
        return f"integer kernels bit for bit; {difference}"

    def rows(self) -> list[tuple[str, str]]:
        """Return (label, text) for a summary."""
        where = f"{self.runtime}, {quantity(self.samples, 'sample')}"
        rows = [("engine", f"{self._compared()} ({where})")]
        if self.profile:
            rows.append(("arithmetic", describe_profile(self.profile)))
        return rows

    def _compared(self) -> str:
        text = f"{part(self.identical, self.elements)} output values identical"
        if not self.exact:
            text += f" ({percent(self.share, 3)}), max difference {self.worst:g} codes"
            text += f", first difference in {self.first}" if self.first else ""
            why = f"not explained by float nodes: {', '.join(self.wrong[:3])}"
            text += f"; {why if self.wrong else 'rounded otherwise in float nodes'}"
        if self.float_steps:
            text += f"; float nodes run by {self.runtime} on both sides: {self.float_steps}"
        return text

    def __str__(self) -> str:
        samples = quantity(self.samples, "sample")
        head = f"integer engine vs {self.runtime} ({samples}): {self._compared()}"
        return "\n".join([head, *(f"{label}: {text}" for label, text in self.rows()[1:])])
