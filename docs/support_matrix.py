"""The table of operators and targets in docs/targets.md."""

from __future__ import annotations

from collections.abc import Iterable

from qtool.core.ops import Op, Role, rows
from qtool.planning.targets.base import Target

LEGEND = {
    "integer": "computes in integers",
    "opportunistic": "computes in integers where an input already comes in codes",
    "moves": "moves codes",
    "fused": "fused into the layer before it, where the range of the codes clamps as well",
    "between": "computes in float between two integer kernels, its result quantized again at once",
    "weights": "its weights are stored as codes, the rest is float",
    "float": "left in float",
}
"""Word of the table -> its meaning."""


def treatment(op: Op, target: Target) -> str:
    """Return the best treatment of an operator on a target: a word of LEGEND."""
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
    return "opportunistic" if rule.opportunistic else "integer"


def operator_table(targets: Iterable[Target]) -> str:
    """Return a Markdown table with a row for each operator, in the order of their families.

    The name in backticks is the operator's key in plans and recipes; the next column has its names
    in torch.
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
    by_key: dict[str, list[Op]] = {}
    for op in rows():
        by_key.setdefault(op.key, []).append(op)
    return by_key


def _aten_name(target: object) -> str:
    """Return `aten::conv2d` for `aten.conv2d.default`."""
    library, _, rest = str(target).partition(".")
    return f"{library}::{rest.rpartition('.')[0] or rest}"
