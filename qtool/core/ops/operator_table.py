"""The operator table: registration and lookup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx

from qtool.core.errors import PlanError
from qtool.core.ops.row import Op

OPS: dict[Any, Op] = {}


def register(op: Op) -> None:
    """Add a row, which planner, exporter, audit and reports then use.

    Raises:
        PlanError: the row has no torch operator, or one that is registered already.
    """
    if not op.targets:
        raise PlanError(f"operator '{op.key}' names no torch operator; give at least one")
    for target in op.targets:
        if target in OPS:
            raise PlanError(f"{target} is registered already ({OPS[target].key}); register it once")
    for target in op.targets:
        OPS[target] = op


def rows() -> Iterable[Op]:
    """Return every row once, in the order of registration."""
    return dict.fromkeys(OPS.values())


def row_of(node: fx.Node) -> Op | None:
    return OPS.get(node.target) if node.op == "call_function" else None


def data_inputs(node: fx.Node) -> list[Any]:
    """Return the data arguments of a node (nodes or numbers), with lists flattened."""
    inputs: list[Any] = []
    for index in OPS[node.target].inputs:
        argument = node.args[index] if index < len(node.args) else None  # optional
        inputs += argument if isinstance(argument, list | tuple) else [argument]
    return inputs


def macs(node: fx.Node, batch: int) -> int:
    """Return the MACs of one sample at the captured sizes; 0 except for layers with weights and
    matrix products."""
    row = row_of(node)
    return 0 if row is None or row.macs is None else row.macs(node) // batch
