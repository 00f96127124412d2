"""What each target does with each operator, as a table for people: made of rows and tables."""

from __future__ import annotations

from collections.abc import Iterable

from qtool.core.ops import Op, Role, rows
from qtool.planning.targets.base import Target

LEGEND = {
    "integer": "computes in integers",
    "follows": "computes in integers where an input comes in codes already",
    "moves": "moves codes",
    "fused": "fused into the layer before it, where the range of codes does its work",
    "between": "computes in float between two integer kernels, its result quantized again at once",
    "weights": "its weights are stored as int8 codes, the rest is float",
    "float": "left in float",
}
"""Word of the table -> what it means."""


def treatment(op: Op, target: Target) -> str:
    """What becomes of an operator on a target, at best: a word of LEGEND."""
    rule = target.kernels.get(op.key)
    if op.key in target.weight_only:
        return "weights"
    if op.role is Role.CLIP:
        return "fused"
    if rule is None:
        return "weights" if op.weight_only_reason and op.key not in target.no_kernel else "float"
    if op.role is Role.PASS:
        return "moves"
    if rule.float_between_qdq:
        return "between"
    return "follows" if rule.opportunistic else "integer"


def operator_table(targets: Iterable[Target]) -> str:
    """A Markdown table, one row for each operator, in the order of their families.

    A backtick name is the operator's key in plans and recipes; beside it what it is in torch.
    """
    columns = list(targets)
    lines = [
        "| operator | in torch | " + " | ".join(t.name for t in columns) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for key, ops in _by_key().items():
        spellings = sorted({_aten_name(t) for op in ops for t in op.targets})
        cells = [treatment(ops[0], target) for target in columns]
        lines.append(f"| `{key}` | {', '.join(spellings)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _by_key() -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in rows():
        found.setdefault(op.key, []).append(op)
    return found


def _aten_name(target: object) -> str:
    """`aten.conv2d.default` without its overload."""
    library, _, rest = str(target).partition(".")
    return f"{library}::{rest.rpartition('.')[0] or rest}"
