"""Result of the verification of an exported file, also at other sizes than the sample's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from qtool.core.number_texts import quantity, sizes_text
from qtool.core.summary import Result, Summary
from qtool.verification.coverage import Coverage
from qtool.verification.exactness import Exactness
from qtool.verification.fidelity import Fidelity, decibels_text
from qtool.verification.parity import Parity
from qtool.verification.portability import Portability


@dataclass(frozen=True)
class SizeCheck:
    """A file at other sizes of its dynamic dimensions.

    Attributes:
        sizes: name of a dimension -> its size.
        sqnr_db: SQNR of the worst float output against the float model, dB, the median of the
            samples; None without noise.
        wrong: what differs from the model; "" if nothing does.
        dimensions: names of the dimensions that cause it.
        samples: number of samples of that SQNR; 0 where no output is float.
    """

    sizes: Mapping[str, int]
    sqnr_db: float | None
    wrong: str = ""
    dimensions: tuple[str, ...] = ()
    samples: int = 0

    def __str__(self) -> str:
        figure = f"{decibels_text(self.sqnr_db)} of {quantity(self.samples, 'sample')}"
        figure = figure if self.samples else "the same shapes"
        return f"{sizes_text(self.sizes)}: {self.wrong or figure}"


@dataclass(frozen=True)
class Verification(Result):
    """Result of the verification of an exported file.

    Attributes:
        parity: comparison with the fake-quantized model.
        exactness: comparison with the integer engine; None for a target whose arithmetic is not
            known to the last bit or that runs elsewhere.
        coverage: share of the work in integer kernels; that of the plan if `exactness` is None.
        fidelity: comparison with the float model. It measures the plan, not whether the file is
            right, and does not affect `passed`.
        portability: behaviour on other CPUs; None for runtimes whose arithmetic is not known.
        missing_runtime: a sentence if the target's runtime is supported here but not installed.
        notes: further measurements, in sentences, such as the speed.
        other_sizes: the file at other sizes of its dynamic dimensions; empty where only the batch
            is dynamic.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("passed",)

    parity: Parity
    exactness: Exactness | None
    coverage: Coverage
    fidelity: Fidelity
    portability: Portability | None = None
    missing_runtime: str = ""
    notes: tuple[str, ...] = ()
    other_sizes: tuple[SizeCheck, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether parity holds, at other sizes too, and integer kernels are exact to the last
        bit."""
        exact = self.exactness is None or self.exactness.passed
        return exact and self.parity.passed and not any(c.wrong for c in self.other_sizes)

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Return (label, figures) for a summary."""
        rows = [self.fidelity.row(), self.coverage.row(), ("verified", self._verified())]
        if self.other_sizes:
            rows.append(("other sizes", "; ".join(map(str, self.other_sizes))))
        other = None if self.portability is None else self.portability.row()
        return tuple(rows if other is None else [*rows, other])

    def _verified(self) -> str:
        if self.exactness is None and self.parity.optimised is not None:
            return f"as written and in {self.coverage.runtime}, against the plan"
        if self.exactness is None:
            why = self.missing_runtime or "it does not run here"
            return f"as written, against the plan; not in the target's runtime: {why}"
        where = f"{self.coverage.runtime}, {quantity(self.exactness.samples, 'sample')}"
        if self.exactness.exact:
            return f"identical to the integer engine, bit for bit ({where})"
        return f"{self.exactness.rounding} ({where})"

    def summary(self, title: str = "Verification", text: str = "") -> Summary:
        """Return the result in a few lines."""
        warning = self.fidelity.warning
        notes = (*self.fidelity.notes(), *self.notes)
        warnings = () if warning is None else (warning,)
        return Summary(title, text, self.rows(), notes, warnings)

    def details(self) -> str:
        """Return every measurement, with a line per operator that is in float."""
        exactness = (
            self.exactness or "codes of the target's runtime: cannot be compared on this machine"
        )
        measured = [self.coverage, exactness, self.parity, self.fidelity, self.portability]
        parts = [
            *(part for part in measured if part is not None),
            *(f"at {check}" for check in self.other_sizes),
            self.missing_runtime,
            *self.notes,
        ]
        return "\n".join(filter(None, map(str, parts)))
