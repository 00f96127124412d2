"""How each node of a plan runs, and the reason that users read."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph.file_parts import part_kind
from qtool.core.ops import macs, row_of
from qtool.core.schemes import When
from qtool.passes.conv_channels import added_channels
from qtool.planning import weight_only
from qtool.planning.node_decisions import NodeDecisions
from qtool.planning.plan import RESULT, Decision, Execution, Point
from qtool.planning.speed.costs import sizes_in_file

BY_RECIPE = "left in float by the recipe"
"""The beginning of the reason of nodes that a recipe excepts."""

_PADDED = "{} channels in the file: its kernel takes 16 at a time"


def operator_name(node: fx.Node) -> str:
    """Return a node's operator as plans print it and recipes select it."""
    row = row_of(node)
    if row is not None:
        return row.key
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return RESULT
    if (kind := part_kind(node)) is not None:
        return kind
    return str(node.target).removeprefix("aten.")


def plan_decisions(state: NodeDecisions, points: tuple[Point, ...]) -> tuple[Decision, ...]:
    """Return the plan's decision for each call of the graph."""
    batch = G.captured_batch(state.graph)
    names = {p.name for p in points}
    inputs: dict[str, list[str]] = {}
    for point in points:
        for user in {e.user for e in point.edges}:
            inputs.setdefault(user, []).append(point.name)
    costs = state.target.costs
    stored = {} if costs is None else sizes_in_file(state.graph, costs, state.integer)
    decisions = (
        _decision(state, node, batch, tuple(inputs.get(G.name_of(node), ())), names)
        for node in G.calls(state.graph)
    )
    widths = {G.name_of(n): s.groups for n, s in stored.items() if s.is_depthwise}
    return tuple(
        replace(d, channels=widths[d.node], reason=_PADDED.format(widths[d.node]))
        if d.node in widths and d.execution is Execution.INTEGER
        else d
        for d in decisions
    )


def _decision(
    state: NodeDecisions, node: fx.Node, batch: int, inputs: tuple[str, ...], names: set[str]
) -> Decision:
    name = G.name_of(node)
    output = name if name in names else None
    execution, reason = _execution(state, node, output is not None)
    if execution in (Execution.FUSED, Execution.SHAPE):
        inputs = ()
    if execution is Execution.SHAPE:
        output = None
    cost = 0 if execution is Execution.FUSED else macs(node, batch)
    if cost and execution is not Execution.INTEGER and (added := added_channels(node)):
        cost -= cost * added // int(G.shape(G.source(node, 1))[1])  # `unpad_channels` removes them
    known = cost is not None or execution is Execution.SHAPE
    codes_only = node in state.codes_only
    op = operator_name(node)
    return Decision(name, op, execution, reason, cost or 0, inputs, output, codes_only, known)


def _execution(state: NodeDecisions, node: fx.Node, gives_codes: bool) -> tuple[Execution, str]:
    if node in state.fused_into:
        return Execution.FUSED, f"into {G.name_of(state.fused_into[node])}"
    if node in state.integer:
        in_codes = gives_codes or any(user in state.fused_into for user in node.users)
        return Execution.INTEGER, "" if in_codes else "result in float"
    if node in state.weight_only:
        return _weight_only_execution(state, node)
    if gives_codes and node in state.passthrough:
        return Execution.PASS, ""
    if not gives_floats(node):
        return Execution.SHAPE, "not a float tensor"
    return Execution.FLOAT, state.reasons.get(node, "between float operators")


def _weight_only_execution(state: NodeDecisions, node: fx.Node) -> tuple[Execution, str]:
    scheme, row = state.weight_only[node], row_of(node)
    execution, reason = weight_only.execution_and_reason(scheme, state.target)
    if row is not None and row.extra_weights and scheme.when is When.DYNAMIC:
        reason = "its inputs are quantized in each time step"
    elif node in state.tied_tables:
        reason = f"rows are read from the codes of {G.name_of(state.tied_tables[node])}"
    elif row is not None and (cause := state.reasons.get(node) or state.weight_only_reason(row)):
        reason = f"{cause}: {weight_only.describe_weights(scheme)}, the rest in float"
    return execution, reason


def gives_floats(node: fx.Node) -> bool:
    """Return whether a node's result, or one of its results, is a float tensor."""
    value = G.value(node)
    results = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(r, torch.Tensor) and r.is_floating_point() for r in results)
