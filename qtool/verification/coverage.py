"""Integer coverage: the share of a model's work that runs in integer kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qtool.core import formats
from qtool.core.ops import OPS
from qtool.core.records import JsonRecord
from qtool.planning.plan import Decision, Execution, QuantPlan

_PLANNED = "as planned for"


@dataclass(frozen=True)
class AuditRow:
    """One operator of a file.

    Attributes:
        name: name of the operator.
        op: its type in the file.
        kernel: what the runtime runs for it.
        integer: whether that is an integer kernel.
        macs: multiply-accumulates of one sample.
        reason: why it is not an integer kernel.
        weights_only: whether it uses integer weights with float inputs and results.
    """

    name: str
    op: str
    kernel: str
    integer: bool
    macs: int
    reason: str
    weights_only: bool = False


@dataclass(frozen=True)
class Coverage(JsonRecord):
    """The audit of one file.

    Attributes:
        runtime: the runtime and its version.
        rows: one for each operator.
    """

    JSON_PROPERTIES: ClassVar = ("integer_mac_share", "integer_weight_mac_share", "macs")

    runtime: str
    rows: tuple[AuditRow, ...]

    @property
    def macs(self) -> int:
        return sum(r.macs for r in self.rows)

    @property
    def share(self) -> float:
        """Share of the MACs in integer kernels, 0 to 1; 1 for a file without MACs."""
        return sum(r.macs for r in self.rows if r.integer) / self.macs if self.macs else 1.0

    @property
    def weight_share(self) -> float:
        """Share of the MACs with integer weights and float inputs and results, 0 to 1."""
        return sum(r.macs for r in self.rows if r.weights_only) / self.macs if self.macs else 0.0

    @property
    def integer_mac_share(self) -> float:
        """`share`, under its name in JSON."""
        return self.share

    @property
    def integer_weight_mac_share(self) -> float:
        """`weight_share`, under its name in JSON."""
        return self.weight_share

    @property
    def audited(self) -> bool:
        """Whether the runtime was asked; False for the plan's word."""
        return not self.runtime.startswith(_PLANNED)

    @property
    def float_rows(self) -> tuple[AuditRow, ...]:
        return tuple(r for r in self.rows if not r.integer)

    def row(self) -> tuple[str, str]:
        """Return (label, figures) for a summary."""
        planned = "" if self.audited else " (as planned; not audited on this machine)"
        count = sum(r.weights_only for r in self.rows)
        weights = f"{formats.share(self.weight_share)} of the compute"
        if count and not self.share:
            layers = formats.quantity(count, "layer")
            return "weights", f"{layers}, {weights}; activations stay float{planned}"
        done = len(self.rows) - len(self.float_rows)
        text = f"{formats.share(self.share)} of {formats.count(self.macs)} MACs"
        text += f", {done} of {len(self.rows)} operators"
        if count:
            layers = formats.quantity(count, "more layer")
            text += f"; {layers} ({weights}) with integer weights only"
        return "integer", f"{text}{planned}"

    def __str__(self) -> str:
        done = len(self.rows) - len(self.float_rows)
        head = (
            f"{done} of {len(self.rows)} operators and {formats.percent(self.share)} of "
            f"{self.macs / 1e6:.2f} M MACs run in integer kernels ({self.runtime})"
        )
        if self.weight_share:
            weights = f"{formats.percent(self.weight_share)} of the MACs"
            head += f"; {weights} use integer weights and float activations"
        rows = [
            f"  {'weights only' if r.weights_only else 'float'}: {r.name} ({r.op} -> {r.kernel}): "
            f"{r.reason}"
            for r in self.float_rows
        ]
        return "\n".join([head, *rows])


def planned_coverage(plan: QuantPlan) -> Coverage:
    """Return the coverage that a plan promises, for a runtime that is not on this machine."""
    rows = tuple(
        AuditRow(d.node, d.op, "as planned", d.computes_on_codes, d.macs, d.reason)
        for d in audited_operators(plan)
    )
    return Coverage(f"{_PLANNED} {plan.target}, not audited on this machine", rows)


def audited_operators(plan: QuantPlan) -> list[Decision]:
    """Return the nodes of a plan that an audit lists."""
    known = {row.key for row in OPS.values()}
    return [
        d
        for d in plan.nodes
        if d.computes_on_codes
        or d.execution is Execution.WEIGHTS
        or (d.execution is Execution.FLOAT and d.op in known)
    ]
