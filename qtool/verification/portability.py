"""Results of a file on other CPUs."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.core.argument_names import argument
from qtool.core.number_texts import db, percent, quantity
from qtool.core.records import JsonRecord

PORTABLE = "onnxruntime"
CLOSE = 60.0
"""SQNR in dB from which on no other target is recommended."""


@dataclass(frozen=True)
class OtherCpu:
    """A file on another family of CPUs.

    Attributes:
        profile: its numerics profile.
        cpu: the family in words.
        nodes: operators that give other codes there for some input.
        sqnr_db: SQNR of the outputs against this machine's, the worst one; None if they are equal
            or were not computed.
        changed: share of the samples whose predicted class changes; None without classes.
    """

    profile: str
    cpu: str
    nodes: tuple[str, ...]
    sqnr_db: float | None = None
    changed: float | None = None

    def __str__(self) -> str:
        if self.sqnr_db is None:
            count = f"{len(self.nodes)} operator{'s' * (len(self.nodes) != 1)}"
            return f"on {self.cpu}: identical outputs; codes of {count} may differ on other inputs"
        parts = [f"SQNR {db(self.sqnr_db)} dB against this CPU"]
        if self.changed is not None:
            parts.append(f"{percent(self.changed, 1)} of predictions change")
        return f"on {self.cpu}: {', '.join(parts)}"


@dataclass(frozen=True)
class Portability(JsonRecord):
    """A file on the other families of CPUs that ONNX Runtime has kernels for.

    Attributes:
        cpus: one row for each family.
        samples: number of samples computed, if codes differ.
        float_nodes: number of nodes whose last bits differ between CPUs.
        rounding_nodes: number of operators that round their float inputs to int8 as the kernels of
            a CPU do, which the file does not state: what they give elsewhere is not computed.
        portable: whether the file's target has identical codes on all CPUs; True for a file of
            another tool, which has none.
    """

    cpus: tuple[OtherCpu, ...]
    samples: int
    float_nodes: int
    portable: bool
    rounding_nodes: int = 0

    def row(self) -> tuple[str, str] | None:
        """Return (label, figures) for a summary; None if nothing differs on other CPUs."""
        other = [c for c in self.cpus if c.nodes]
        if not other:
            return None
        lowest = min(other, key=lambda c: CLOSE if c.sqnr_db is None else c.sqnr_db)
        advice = (
            ""
            if self.portable or lowest.sqnr_db is None
            else f"; use {argument('--target', PORTABLE)}"
        )
        return "other CPUs", f"{lowest}{advice}"

    def __str__(self) -> str:
        same = [c.cpu for c in self.cpus if not c.nodes]
        other = [c for c in self.cpus if c.nodes]
        lines = [str(c) for c in other]
        decibels = [CLOSE if c.sqnr_db is None else c.sqnr_db for c in other]
        if not self.portable and min(decibels, default=CLOSE) < CLOSE:
            lines[decibels.index(min(decibels))] += f"; use {argument('--target', PORTABLE)}"
        if self.rounding_nodes:
            count = quantity(self.rounding_nodes, "operator")
            lines.append(
                f"not known: {count} with stored weights round their inputs as each CPU does; "
                f"emulate one with {argument('--cpu')}"
            )
        elif same:
            lines.insert(0, f"identical codes on {', '.join(same)}")
        if self.float_nodes and not self.rounding_nodes:
            lines[0] += f"; {self.float_nodes} float nodes may differ in the last bits"
        return "\n".join(lines)
