"""From a canonical float graph and a target to the plan. Pure: nothing is changed or run.

1. Which nodes compute in integers (forward): heavy operators always, the light ones between them
   where an input already comes in codes; not those that the recipe leaves out, and no concat that
   no layer in integers reads: each part of it keeps parameters of its own.
2. Which values are wanted in codes (backward).
3. A clamp behind an integer node is fused where the output's quantization does its decisions.
4. A value gets a point where a node that runs in integers reads it, or where its own kernel gives
   codes and nothing else. Float nodes read the float value where there is one.
5. Points that must agree share their parameters (see sharing.py).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph.onnx_subgraph import subgraph_kind
from qtool.core.ops import Op, Role, data_inputs, macs, row_of
from qtool.core.schemes import Scheme, When
from qtool.core.types import ObserverSpec
from qtool.planning import weight_only
from qtool.planning.node_decisions import NodeDecisions, operator_key
from qtool.planning.placement import place_points
from qtool.planning.plan import Decision, Execution, Point, QuantPlan
from qtool.planning.recipe import INPUT, Choice, Recipe
from qtool.planning.sharing import share_parameters
from qtool.planning.targets import Target, rules


def make_plan(
    graph: fx.Graph,
    target: Target,
    observer: ObserverSpec,
    recipe: Recipe | None = None,
    known_observers: Mapping[str, ObserverSpec] | None = None,
    layers: Mapping[str, str] | None = None,
) -> QuantPlan:
    """The plan of a canonical float graph for a target.

    Args:
        observer: of the tensors that no rule of the recipe names one for.
        seen: tensor -> the observer that it was seen by already, which then is its observer unless
            a rule names another.
        layers: given where the graph is a part of a model, which may be left in float as a whole:
            see `Recipe.choices`.

    Raises:
        PlanError: nothing in the model can be computed in integers, or a rule of the recipe
            selects nothing.
    """
    recipe = recipe or Recipe()
    choices = recipe.choices(_operators(graph), layers)
    decisions = NodeDecisions(graph, target, observer, choices, known_observers or {})
    _choose_integer(decisions)
    _tie_tables(decisions)
    if not decisions.integer and not decisions.weight_only and layers is None:
        raise PlanError(
            f"nothing in this model can run in integers on {target.name}: "
            f"{_why_nothing(decisions)}; leave it in float, or choose another target"
        )
    _find_codes_needed(decisions)
    _fuse_clamps(decisions)
    place_points(decisions)
    alike = {n for n in decisions.integer if operator_key(n) in target.same_parameters}
    points = share_parameters(
        decisions.points, graph, {G.name_of(n) for n in decisions.passthrough | alike}
    )
    nodes = tuple(
        replace(_decision(decisions, n, points), codes_only=n in decisions.codes_only)
        for n in G.calls(graph)
    )
    return QuantPlan(target.name, observer, recipe, points, nodes)


def _operators(graph: fx.Graph) -> dict[str, str]:
    """What a recipe can select: name -> operator."""
    inputs = {G.name_of(n): INPUT for n in G.placeholders(graph)}
    return inputs | {G.name_of(n): _operator_name(n) for n in G.calls(graph)}


def _operator_name(node: fx.Node) -> str:
    row = row_of(node)
    if row is not None:
        return row.key
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return "result"
    if (kind := subgraph_kind(node)) is not None:
        return kind
    return str(node.target).removeprefix("aten.")


def _choose_integer(decisions: NodeDecisions) -> None:
    for node in G.calls(decisions.graph):
        row, choice = row_of(node), decisions.choices[G.name_of(node)]
        if choice.scheme.when is When.FLOAT:
            decisions.reasons[node] = f"left in float by the recipe ({choice.decided_by})"
        elif row is None:
            if _operator_name(node) == "result":
                decisions.reasons[node] = f"one of those of {G.name_of(node.args[0])}"  # type: ignore[arg-type]  # a node
            elif subgraph_kind(node) is not None:
                decisions.reasons[node] = "kept as it is in the file"
            elif _gives_floats(node):
                decisions.reasons[node] = f"no integer kernel on {decisions.target.name}"
        elif row.role is Role.CLIP:
            source = node.args[0]
            if (
                isinstance(source, fx.Node)
                and source in decisions.codes_only
                and len(source.users) == 1
            ):
                decisions.codes_only.add(node)
        elif _weight_only_reason(decisions, row):  # whatever else is asked for, 4 bits too
            _choose_weight_only(decisions, node, choice)
        elif row.weight is None or choice.scheme.when is When.STATIC:
            _choose_static(decisions, node, row)
        elif (refusal := weight_only.refuse(node, row, choice, decisions.target)) is not None:
            decisions.reasons[node] = refusal
        else:
            scheme = choice.scheme.first_match(decisions.target.schemes(row.key))
            assert scheme is not None
            decisions.weight_only[node] = scheme


def _tie_tables(decisions: NodeDecisions) -> None:
    """Tables that a layer has as its weight, too, are looked up in the codes of that layer."""
    for table in list(G.calls(decisions.graph)):
        row = row_of(table)
        if row is None or row.from_codes is None or not _weight_only_reason(decisions, row):
            continue
        if decisions.choices[G.name_of(table)].scheme.when is When.FLOAT:
            continue
        for layer in table.args[row.weight].users:  # type: ignore[union-attr,index]  # nodes
            choice = decisions.choices[G.name_of(layer)]
            scheme = decisions.weight_only.get(layer)
            if layer is not table and scheme is not None:
                scheme = weight_only.tied_table_scheme(table, scheme, choice, decisions.target)
            if layer is not table and scheme is not None:
                decisions.weight_only[layer] = decisions.weight_only[table] = scheme
                decisions.tied_tables[table] = layer
                decisions.reasons.pop(table, None)
                break


def _weight_only_reason(decisions: NodeDecisions, row: Op) -> str:
    """Why the weights alone of an operator are stored as codes; "" where they are not."""
    target = decisions.target
    known = row.key in target.kernels or row.key in target.no_kernel
    return target.weight_only.get(row.key, "" if known else row.weight_only_reason)


def _choose_weight_only(decisions: NodeDecisions, node: fx.Node, choice: Choice) -> None:
    if (objection := rules.stored_weights(node)) is not None:
        decisions.reasons[node] = objection
    else:
        decisions.weight_only[node] = weight_only.storage_scheme(
            operator_key(node), choice.scheme, decisions.target
        )


def _choose_static(decisions: NodeDecisions, node: fx.Node, row: Op) -> None:
    choice = decisions.choices[G.name_of(node)]
    asked = choice.scheme if row.weight is not None else choice.scheme.activations_only
    requested = Scheme() if row.role is Role.PASS else asked
    scheme = requested.first_match(decisions.target.schemes(row.key))
    objection = _refusal(decisions, node, row)
    if objection is None and scheme is None:
        objection = weight_only.no_kernel_reason(asked, choice, decisions.target)
    if row.role is Role.PASS and objection is None:
        decisions.passthrough.add(node)
        if node.args[0] in decisions.codes_only:
            decisions.codes_only.add(node)
    elif objection is not None or scheme is None:
        decisions.reasons[node] = objection or ""
    else:
        rule = decisions.target.kernels[row.key]
        if rule.float_between_qdq:
            decisions.reasons[node] = "in float between dequantize and quantize"
        else:
            decisions.integer[node] = scheme
        if not rule.float_output:
            decisions.codes_only.add(node)


def _refusal(decisions: NodeDecisions, node: fx.Node, row: Op) -> str | None:
    rule = decisions.target.kernels.get(row.key)
    if rule is None:
        if row.key in rules.PRODUCTS and (reason := rules.weight_operand_refusal(node)) is not None:
            return reason
        return decisions.target.no_kernel.get(
            row.key, f"no integer kernel on {decisions.target.name}"
        )
    if (reason := rule.refuse(node)) is not None:
        return reason
    if rule.opportunistic:
        sources = [x for x in data_inputs(node) if isinstance(x, fx.Node)]
        if not any(x in decisions.codes_only for x in sources):
            return "its inputs are float"
        mixed = any(x.op == "call_function" and x not in decisions.codes_only for x in sources)
        if mixed and not _feeds_layer(decisions, node):
            return "one of its inputs is float, and no layer reads its result"
        if row.role is Role.JOIN and not _feeds_integer_layer(decisions, node):
            return "no layer in integers reads its result"
    return None


def _feeds_layer(decisions: NodeDecisions, node: fx.Node) -> bool:
    """Whether a layer with weights, or the output, reads a result: as it is, moved or pooled.

    In a transformer none does: the sums between its blocks go to norms and to the next sum. In
    codes they would be rounded again and again, and dequantized for every norm.
    """
    for user in node.users:
        row = row_of(user)
        if user.op == "output" or (row is not None and row.weight is not None):
            return True
        if row is None or len(data_inputs(user)) > 1:
            continue
        known = row.role is Role.CLIP or row.key in decisions.target.kernels
        if known and _feeds_layer(decisions, user):
            return True
    return False


def _feeds_integer_layer(decisions: NodeDecisions, node: fx.Node) -> bool:
    """Whether a layer that computes in integers reads a result, directly or through what computes
    on codes. Nothing of the kind stands behind the end of a network: one scale for all that is
    joined there would be as wide as its widest part (boxes beside their scores)."""
    ahead, seen = [node], {node}
    while ahead:
        for user in ahead.pop().users:
            row = row_of(user) if user.op == "call_function" else None
            if row is None or user in seen or _stays_float(decisions, user, row):
                continue
            if row.weight is not None:
                return True
            seen.add(user)
            ahead.append(user)
    return False


def _stays_float(decisions: NodeDecisions, node: fx.Node, row: Op) -> bool:
    scheme = decisions.choices[G.name_of(node)].scheme
    if scheme.when is not When.STATIC and (row.weight is not None or scheme.when is When.FLOAT):
        return True
    rule = decisions.target.kernels.get(row.key)
    return row.role is not Role.CLIP and (rule is None or rule.refuse(node) is not None)


def _find_codes_needed(decisions: NodeDecisions) -> None:
    takes_codes: set[fx.Node] = set(decisions.integer)
    for node in reversed(list(G.calls(decisions.graph))):
        row = row_of(node)
        on_codes = (
            row is not None
            and row.key in decisions.target.file.passthrough_on_codes
            and node in decisions.codes_only
        )
        if node in decisions.passthrough and (node in decisions.needs_codes or on_codes):
            takes_codes.add(node)
        if node in takes_codes:
            rule = decisions.target.kernels[operator_key(node)]
            for source in data_inputs(node):
                if isinstance(source, fx.Node) and source is not rule.float_operand(node):
                    decisions.needs_codes.add(source)


def _fuse_clamps(decisions: NodeDecisions) -> None:
    """relu and clamp(0, x): the zero point at the lowest code and the range up to x do the same."""
    for node in G.calls(decisions.graph):
        row, source = row_of(node), node.args[0] if node.args else None
        if row is None or row.role is not Role.CLIP or not isinstance(source, fx.Node):
            continue
        if node in decisions.reasons:  # left in float by the recipe
            continue
        codes_out = node in decisions.needs_codes or node in decisions.codes_only
        from_zero = row.bounds(node)[0] == 0
        free = operator_key(source) not in (
            *decisions.target.fixed_outputs,
            *decisions.target.same_parameters,
        )
        saturates = from_zero and free  # the output's parameters are chosen so that they clamp
        if source in decisions.integer and len(source.users) == 1 and codes_out and saturates:
            decisions.fused_into[node] = source
            decisions.codes_only.discard(source)
            decisions.needs_codes.discard(source)
            decisions.codes_only.add(node)
        elif source in decisions.integer:
            if codes_out and decisions.target.kernels[operator_key(source)].single_dtype_output:
                decisions.needs_codes.add(
                    source
                )  # the runtime drops the clamp, whose codes clamp as well
            decisions.reasons[node] = "clamps in float between dequantize and quantize"
        else:
            decisions.reasons[node] = "its input is float"


def _decision(decisions: NodeDecisions, node: fx.Node, points: tuple[Point, ...]) -> Decision:
    name = G.name_of(node)
    names = {p.name for p in points}
    inputs = tuple(p.name for p in points if any(e.user == name for e in p.edges))
    output = name if name in names else None
    op = _operator_name(node)
    first = next((n for n in decisions.graph.nodes if n.op == "placeholder"), None)
    batch = G.hint(G.shape(first)[0]) if first is not None and G.shape(first) else 1
    cost = macs(node, batch)
    if node in decisions.fused_into:
        return Decision(
            name,
            op,
            Execution.FUSED,
            f"into {G.name_of(decisions.fused_into[node])}",
            0,
            (),
            output,
        )
    if node in decisions.integer:
        why = (
            ""
            if output or any(u in decisions.fused_into for u in node.users)
            else "result in float"
        )
        return Decision(name, op, Execution.INTEGER, why, cost, inputs, output)
    if node in decisions.weight_only:
        scheme = decisions.weight_only[node]
        execution, why = weight_only.execution_and_reason(scheme)
        row = row_of(node)
        if row is not None and row.extra_weights and scheme.when is When.DYNAMIC:
            why = "its inputs are quantized in each step"
        elif node in decisions.tied_tables:
            why = f"rows are looked up in the codes of {G.name_of(decisions.tied_tables[node])}"
        elif row is not None and (reason := _weight_only_reason(decisions, row)):
            why = f"{reason}: {weight_only.describe_weights(scheme)}, the rest in float"
        return Decision(name, op, execution, why, cost, inputs, output)
    if output and node in decisions.passthrough:
        return Decision(name, op, Execution.PASS, "", cost, inputs, output)
    if not _gives_floats(node):
        return Decision(name, op, Execution.SHAPE, "not a float tensor", cost)
    why = decisions.reasons.get(node, "between float operators")
    return Decision(name, op, Execution.FLOAT, why, cost, inputs, output)


def _gives_floats(node: fx.Node) -> bool:
    """One result, or several of which one is float."""
    results = G.value(node)
    several = results if isinstance(results, list | tuple) else [results]
    return any(isinstance(r, torch.Tensor) and r.is_floating_point() for r in several)


def _why_nothing(decisions: NodeDecisions) -> str:
    reasons = [f"{G.name_of(n)} ({r})" for n, r in decisions.reasons.items()][:3]
    return "; ".join(reasons) or "it has no operator with weights"
