"""Which operators of a plan compute in float, in one line, and the cheap change."""

from __future__ import annotations

from collections import Counter

from qtool.core.formats import quantity
from qtool.planning.execution import BY_RECIPE
from qtool.planning.plan import RESULT, Execution, QuantPlan
from qtool.planning.targets import target

_SHOWN = 4
_MOVES = ("pass", RESULT)
"""Operators that compute nothing."""
_INSTEAD = {
    "silu": ("hard_swish", "nn.Hardswish"),
    "mish": ("hard_swish", "nn.Hardswish"),
    "hard_sigmoid": ("sigmoid", "nn.Sigmoid"),
}
"""Operator -> the operator that computes much the same, and its module in torch."""


def float_row(plan: QuantPlan) -> tuple[str, str] | None:
    """Return (label, text) for a summary of a static conversion; None if nothing is in float."""
    rows = [d for d in plan.nodes if d.execution is Execution.FLOAT and d.op not in _MOVES]
    if plan.recipe.mode != "static" or not rows:
        return None
    chosen = target(plan.target)
    by_recipe = sum(d.reason.startswith(BY_RECIPE) for d in rows)
    counts = Counter(_short(d.op) for d in rows if not d.reason.startswith(BY_RECIPE))
    parts = [f"{count} {op}" for op, count in counts.most_common(_SHOWN)]
    if others := counts.total() - sum(count for _, count in counts.most_common(_SHOWN)):
        parts.append(f"{others} more")
    if by_recipe:
        parts.append(f"{quantity(by_recipe, 'operator')} by the recipe")
    changes = [
        f"{module} for {op} computes in integers, after some training with it"
        for op, (key, module) in _INSTEAD.items()
        if op in counts and key in chosen.kernels
    ]
    return "float", "; ".join([", ".join(parts), *changes])


def _short(op: str) -> str:
    """Return an operator's name without library and overload: "mish" for "mish.default"."""
    return op.split(".")[-2] if "." in op else op
