"""Which operators of a file compute in float, in one line, and the cheap change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from qtool.core.number_texts import quantity
from qtool.planning.execution import BY_RECIPE
from qtool.planning.plan import Decision, Execution, QuantPlan
from qtool.planning.targets import target
from qtool.verification.coverage import Coverage, audited_operators

_SHOWN = 4
_INSTEAD = {
    "silu": ("hard_swish", "nn.Hardswish"),
    "mish": ("hard_swish", "nn.Hardswish"),
    "hard_sigmoid": ("sigmoid", "nn.Sigmoid"),
}
"""Operator -> the operator that computes much the same, and its module in torch."""


_JOINED = {"HardSwish": "hard_swish", "HardSigmoid": "hard_sigmoid"}
"""Type of a node that computes several operators of a plan -> what they are together."""


def float_row(plan: QuantPlan, coverage: Coverage) -> tuple[str, str] | None:
    """Return (label, text) for a summary of a static conversion; None if nothing is in float.

    Args:
        plan: the plan of the file.
        coverage: the audit of the file. Operators that it does not list have no node of their own.
    """
    types = {row.name: row.op for row in coverage.rows}
    rows = [
        d
        for d in audited_operators(plan)  # as the audit counts them
        if d.execution is Execution.FLOAT and (d.node in types or not coverage.audited)
    ]
    if plan.recipe.mode != "static" or not rows:
        return None
    by_recipe = sum(d.reason.startswith(BY_RECIPE) for d in rows)
    others = [d for d in rows if not d.reason.startswith(BY_RECIPE)]
    counts = Counter(_name(d, types) for d in others)
    parts = [f"{count} {op}" for op, count in counts.most_common(_SHOWN)]
    if more := counts.total() - sum(count for _, count in counts.most_common(_SHOWN)):
        parts.append(f"{more} more")
    if by_recipe:
        parts.append(f"{quantity(by_recipe, 'operator')} by the recipe")
    planned = {_name(d, {}) for d in others}
    kernels = target(plan.target).kernels
    changes = [
        f"{module} for {op} computes in integers, after some training with it"
        for op, (key, module) in _INSTEAD.items()
        if op in planned and key in kernels
    ]
    return "float", "; ".join([", ".join(parts), *changes])


def _name(operator: Decision, types: Mapping[str, str]) -> str:
    """Return an operator's name without library and overload: "mish" for "mish.default"."""
    op = _JOINED.get(types.get(operator.node, ""), operator.op)
    return op.split(".")[-2] if "." in op else op
