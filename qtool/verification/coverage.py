"""Integer coverage: the share of a model's work that runs in integer kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qtool.core import number_texts
from qtool.core.operator_kinds import is_move
from qtool.core.records import JsonRecord
from qtool.core.summary import Printed
from qtool.planning.plan import RESULT, Decision, Execution, QuantPlan

_PLANNED = "as planned for"
_POOL = "max_pool"
"""The operator that computes and yet may pass codes on."""


@dataclass(frozen=True)
class AuditRow:
    """One operator of a file.

    Attributes:
        name: name of the operator.
        op: its type in the file.
        kernel: what the runtime runs for it.
        integer: whether that is an integer kernel.
        macs: multiply-accumulates of one sample; 0 if they are not known.
        reason: why it is not an integer kernel.
        weights_only: whether it uses integer weights with float inputs and results.
        macs_known: whether they are known.
    """

    name: str
    op: str
    kernel: str
    integer: bool
    macs: int
    reason: str
    weights_only: bool = False
    macs_known: bool = True


@dataclass(frozen=True)
class Coverage(Printed, JsonRecord):
    """The audit of one file.

    Attributes:
        runtime: the runtime and its version.
        rows: one for each operator that computes; those that only move values have none.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = (
        "integer_mac_share",
        "integer_weight_mac_share",
        "macs",
        "unknown_operators",
    )

    runtime: str
    rows: tuple[AuditRow, ...]

    @property
    def macs(self) -> int:
        return sum(r.macs for r in self.rows)

    @property
    def share(self) -> float:
        """Share of the known MACs in integer kernels, 0 to 1; 1 for a file without MACs."""
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
    def unknown_operators(self) -> int:
        """Number of operators whose work is not known."""
        return sum(not r.macs_known for r in self.rows)

    def missed(self, least: float, goal: str) -> str:
        """Return why a least share of the MACs in integer kernels is missed; "" if it is reached.

        Work that is not known may be more than all that is: no share above 0 is reached with it.

        Args:
            least: 0 to 1.
            goal: what the user calls it.
        """
        if least > 0 and not self.macs and not self.unknown_operators:
            return f"no operator has MACs, so that {goal} is not proved"
        if self.share < least:
            return f"integer share is {self.share:.4f}, below {goal}"
        names = [r.name for r in self.float_rows if not r.macs_known]
        if not names or least <= 0:
            return ""
        more = number_texts.quantity(len(names) - 1, "more operator")
        others = f" and {more}" if len(names) > 1 else ""
        return (
            f"integer share is {self.share:.4f} of the MACs that are known, but the work of "
            f"'{names[0]}'{others} in float is not, so that {goal} is not proved"
        )

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
        weights = f"{number_texts.share(self.weight_share)} of the compute"
        if count and not self.share:
            layers = number_texts.quantity(count, "layer")
            unknown = unknown_work(self.unknown_operators)
            return "weights", f"{layers}, {weights}{unknown}; activations stay float{planned}"
        done = len(self.rows) - len(self.float_rows)
        text = f"{number_texts.share(self.share)} of {number_texts.count(self.macs)} MACs"
        text += f", {done} of {len(self.rows)} operators{unknown_work(self.unknown_operators)}"
        if count:
            layers = number_texts.quantity(count, "more layer")
            text += f"; {layers} ({weights}) with integer weights only"
        return "integer", f"{text}{planned}"

    def __str__(self) -> str:
        done = len(self.rows) - len(self.float_rows)
        head = (
            f"{done} of {len(self.rows)} operators and {number_texts.percent(self.share)} of "
            f"{self.macs / 1e6:.2f} M MACs run in integer kernels ({self.runtime})"
        )
        head += unknown_work(self.unknown_operators)
        if self.weight_share:
            weights = f"{number_texts.percent(self.weight_share)} of the MACs"
            head += f"; {weights} use integer weights and float activations"
        rows = [
            f"  {'weights only' if r.weights_only else 'float'}: {r.name} ({r.op} -> {r.kernel}): "
            f"{r.reason}"
            for r in self.float_rows
        ]
        return "\n".join([head, *rows])


def unknown_work(operators: int) -> str:
    """Return the end of a sentence about a share of the work; "" if all work is known."""
    if not operators:
        return ""
    return f", and {number_texts.quantity(operators, 'operator')} whose work is not known"


def planned_coverage(plan: QuantPlan) -> Coverage:
    """Return the coverage that a plan promises, for a runtime that is not on this machine."""
    rows = tuple(
        AuditRow(
            d.node,
            d.op,
            "as planned",
            runs_on_codes(d.execution),
            d.macs,
            d.reason,
            d.execution is Execution.WEIGHTS,
            d.macs_known,
        )
        for d in audited_operators(plan)
    )
    return Coverage(f"{_PLANNED} {plan.target}, not audited on this machine", rows)


def audited_operators(plan: QuantPlan) -> list[Decision]:
    """Return the nodes of a plan that an audit lists."""
    return [d for d in plan.nodes if is_audited(d.op, d.execution, d.macs > 0 or not d.macs_known)]


def is_audited(op: str, execution: Execution, works: bool) -> bool:
    """Return whether an audit lists an operator: whether it computes, in integers or in float.

    Args:
        op: its name in the plan.
        execution: how it runs.
        works: whether it has multiply-accumulates, or may have.
    """
    if execution in (Execution.INTEGER, Execution.DYNAMIC, Execution.WEIGHTS):
        return True
    if execution is Execution.PASS:
        return op == _POOL
    return execution is Execution.FLOAT and (works or not (op == RESULT or is_move(op)))


def runs_on_codes(execution: Execution) -> bool:
    """Return whether an operator that an audit lists is planned to run in an integer kernel."""
    return execution in (Execution.INTEGER, Execution.DYNAMIC, Execution.PASS)
