"""The operator table: registration and lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
from torch import fx

from qtool.core.errors import PlanError
from qtool.core.ops.row import CustomOp, Op, Writer

OPS: dict[Any, Op] = {}
_WRITERS: dict[Any, Writer] = {}  # of operators without a row
_CONTRIB: dict[Any, Writer] = {}


def register(op: Op) -> None:
    """Add a row, which planner, exporter, audit and reports then use.

    Raises:
        PlanError: the row has no torch operator, or one that is registered already.
    """
    if not op.targets:
        raise PlanError(f"operator '{op.key}' names no torch operator; give at least one")
    for target in op.targets:
        if target in OPS or target in _WRITERS:
            known = OPS[target].key if target in OPS else "written by qtool"
            raise PlanError(f"{target} is registered already ({known}); register it once")
    for target in op.targets:
        OPS[target] = op


def register_writer(target: Any, writer: Writer, contrib: bool = False) -> None:
    """Register the ONNX form of a torch operator without a row: one that stays in float, or occurs
    only in graphs to export.

    Args:
        target: torch operator.
        writer: writes its ONNX form.
        contrib: the form is in ONNX Runtime's domain.

    Raises:
        PlanError: it has one already.
    """
    table = _CONTRIB if contrib else _WRITERS
    if target in OPS or target in table:
        raise PlanError(f"{target} is registered already; register it once")
    table[target] = writer


def writers(contrib: bool) -> Mapping[Any, Writer]:
    """Return torch operator -> ONNX form, of all that torch.onnx does not write."""
    forms = dict(_WRITERS)
    forms |= {target: op.onnx for target, op in OPS.items() if op.onnx is not None}
    if contrib:
        forms |= _CONTRIB
        forms |= {target: op.contrib for target, op in OPS.items() if op.contrib is not None}
    return forms


def rows() -> Iterable[Op]:
    """Return every row once, in the order of registration."""
    return dict.fromkeys(OPS.values())


def functions_of(nodes: Iterable[tuple[str, str]]) -> list[onnx.FunctionProto]:
    """Return the ONNX functions that define nodes (domain, name) of a file; see CustomOp."""
    ops = (_custom_op(*node) for node in dict.fromkeys(nodes))
    return [function for op in ops if op is not None for function in op.functions]


def kernel_of(domain: str, name: str) -> Callable[..., Any] | None:
    """Return the kernel of the integer engine for a node of a file; None: ONNX Runtime runs it."""
    op = _custom_op(domain, name)
    return None if op is None else op.kernel


def _custom_op(domain: str, name: str) -> CustomOp | None:
    ops = (row.custom_op for row in rows() if row.custom_op is not None)
    return next((op for op in ops if domain and (op.domain, op.name) == (domain, name)), None)


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
