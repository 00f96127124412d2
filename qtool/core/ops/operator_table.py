"""The operators by the torch operators that are they, and the one door to the table."""

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
    """Adds a row: its operators are then known to planner, exporter, audit and reports.

    Raises:
        PlanError: one of its torch operators has a row or a form already, or there is none.
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
    """The ONNX form of a torch operator that has no row: it is left in float, or stands only in
    graphs about to be exported. `contrib`: a form in ONNX Runtime's own domain.

    Raises:
        PlanError: it has one already.
    """
    table = _CONTRIB if contrib else _WRITERS
    if target in OPS or target in table:
        raise PlanError(f"{target} is registered already; register it once")
    table[target] = writer


def writers(contrib: bool) -> Mapping[Any, Writer]:
    """torch operator -> its ONNX form, of all that torch.onnx is not left to write."""
    found = dict(_WRITERS)
    found |= {target: op.onnx for target, op in OPS.items() if op.onnx is not None}
    if contrib:
        found |= _CONTRIB
        found |= {target: op.contrib for target, op in OPS.items() if op.contrib is not None}
    return found


def rows() -> Iterable[Op]:
    """Every row once, in the order of registration."""
    return dict.fromkeys(OPS.values())


def functions_of(nodes: Iterable[tuple[str, str]]) -> list[onnx.FunctionProto]:
    """What gives nodes of a file, (domain, name), their meaning: see Kept."""
    kept = (_custom_op(*node) for node in dict.fromkeys(nodes))
    return [function for k in kept if k is not None for function in k.functions]


def kernel_of(domain: str, name: str) -> Callable[..., Any] | None:
    """What the integer engine runs for a node of a file in place of the runtime."""
    kept = _custom_op(domain, name)
    return None if kept is None else kept.kernel


def _custom_op(domain: str, name: str) -> CustomOp | None:
    found = (r.custom_op for r in rows() if r.custom_op is not None)
    return next((k for k in found if domain and (k.domain, k.name) == (domain, name)), None)


def row_of(node: fx.Node) -> Op | None:
    return OPS.get(node.target) if node.op == "call_function" else None


def data_inputs(node: fx.Node) -> list[Any]:
    """The data arguments of a node (nodes or numbers), lists flattened: a concat has many."""
    found: list[Any] = []
    for index in OPS[node.target].inputs:
        argument = node.args[index] if index < len(node.args) else None  # an optional one
        found += argument if isinstance(argument, list | tuple) else [argument]
    return found


def macs(node: fx.Node, batch: int) -> int:
    """MACs of one sample at the captured sizes; 0 for what is no layer with weights and no product
    of matrices."""
    row = row_of(node)
    return 0 if row is None or row.macs is None else row.macs(node) // batch
