"""From a canonical float graph and a target to the plan. Nothing is changed or run.

1. Choose the nodes that compute in integers, in graph order: layers with weights always;
   opportunistic operators where an input already comes in codes. A node that the recipe leaves out
   stays float, and so does a concat that no integer layer reads: its parts keep their own
   parameters.
2. Find the values that are needed in codes, in reverse order.
3. Fuse a clamp into the integer node in front of it where quantizing the output clamps anyway.
4. Place a point where an integer node reads a value, or where a kernel returns codes only. Float
   nodes read the float value where there is one.
5. Points that must agree share their parameters (sharing.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph.file_parts import branch_inputs, part_kind
from qtool.core.ops import Op, Role, data_inputs, row_of
from qtool.core.remedies import Argument, ModelEdit, Omission, Remedy
from qtool.core.schemes import Scheme, When
from qtool.core.summary import group_names
from qtool.core.types import ObserverSpec
from qtool.passes.fold_batch_norm import why_not_folded
from qtool.planning import weight_only
from qtool.planning.execution import BY_RECIPE, gives_floats, operator_name, plan_decisions
from qtool.planning.node_decisions import NodeDecisions, operator_key
from qtool.planning.placement import place_points
from qtool.planning.plan import RESULT, QuantPlan
from qtool.planning.recipe import FLOAT_LAYERS, INPUT, MODES, Choice, Recipe
from qtool.planning.sharing import share_parameters
from qtool.planning.speed.slow_layers import slow_layers
from qtool.planning.targets import TARGETS, KernelRule, Target, rules


def make_plan(
    graph: fx.Graph,
    target: Target,
    observer: ObserverSpec,
    recipe: Recipe | None = None,
    known_observers: Mapping[str, ObserverSpec] | None = None,
    layers: Mapping[str, str] | None = None,
) -> QuantPlan:
    """Return the plan of a canonical float graph for a target.

    Args:
        graph: a canonical float graph.
        target: the target.
        observer: observer of the tensors that no rule of the recipe names one for.
        recipe: static quantization by default.
        known_observers: tensor -> the observer of an existing calibration, which the tensor keeps
            unless a rule names another.
        layers: layers of a part of a model, which may stay in float as a whole: see
            `Recipe.choices`.

    Raises:
        PlanError: no operator can run in integers, or a rule of the recipe selects nothing.
    """
    recipe = recipe or Recipe()
    choices = recipe.choices(_operators(graph), layers)
    state = NodeDecisions(graph, target, observer, choices, known_observers or {})
    _choose(state)
    if recipe.slow_layers == FLOAT_LAYERS and (slow := slow_layers(state)):
        state = NodeDecisions(graph, target, observer, choices, state.known_observers, slow)
        _choose(state)
    if not _has_integers(state) and layers is None:
        raise PlanError(
            f"nothing in this model can run in integers on {target.name}: {_float_reasons(state)}",
            *_remedies(state, recipe),
        )
    _find_codes_needed(state)
    _fuse_clamps(state)
    place_points(state)
    same = {n for n in state.integer if operator_key(n) in target.same_parameters}
    passthrough = {G.name_of(n) for n in state.passthrough | same}
    points = share_parameters(state.points, graph, passthrough)
    nodes = plan_decisions(state, points)
    return QuantPlan(target.name, observer, recipe, points, nodes)


def _operators(graph: fx.Graph) -> dict[str, str]:
    """Return the operator of every node that a recipe can select, by name."""
    inputs = {G.name_of(n): INPUT for n in G.placeholders(graph)}
    return inputs | {G.name_of(n): operator_name(n) for n in G.calls(graph)}


def _choose(state: NodeDecisions) -> None:
    _choose_integer(state)
    _tie_tables(state)
    for node, reason in list(weight_only.separate_experts(state.weight_only)):
        state.reasons[node] = reason
        del state.weight_only[node]


def _has_integers(state: NodeDecisions) -> bool:
    return bool(state.integer or state.weight_only)


def _remedies(state: NodeDecisions, recipe: Recipe) -> list[Remedy]:
    """Return what to do about a network that stays in float as a whole: the first change of rules,
    mode or target with which something runs in integers."""
    if names := list(dict.fromkeys(i for n in G.calls(state.graph) for i in branch_inputs(n))):
        values = tuple(f"{name}=VALUE" for name in names)
        text = f"the network is inside an If on {group_names(names)}: fix that input ({{}})"
        return [Argument("--fix", values, text)]

    def has_integers(target: Target = state.target, **changes: Any) -> bool:
        choices = replace(recipe, **changes).choices(_operators(state.graph))
        other = NodeDecisions(state.graph, target, state.observer, choices, state.known_observers)
        _choose(other)
        return _has_integers(other)

    if recipe.rules and has_integers(rules=()):
        return [Omission("--recipe", "leave out the rules of {} that keep its layers in float")]
    for mode in (m for m in MODES if m != recipe.mode and has_integers(mode=m)):
        return [Argument("--mode", mode, "use {}")]
    others = (t for t in TARGETS.values() if not t.integers_only)  # these take anything
    for name in (t.name for t in others if has_integers(t)):
        return [Argument("--target", name, "use {}")]
    return [ModelEdit("keep it in float")]


def _choose_integer(state: NodeDecisions) -> None:
    for node in G.calls(state.graph):
        row, choice = row_of(node), state.choice(node)
        if choice.scheme.when is When.FLOAT:
            state.reasons[node] = f"{BY_RECIPE} ({choice.decided_by})"
        elif row is None:
            if operator_name(node) == RESULT:
                state.reasons[node] = f"one of the results of {G.name_of(G.source(node))}"
            elif part_kind(node) is not None:
                form = node.meta.get(G.KEPT_FORM)
                why = f": {form}" if form else ""
                state.reasons[node] = f"kept unchanged from the file{why}"
            elif gives_floats(node):
                state.reasons[node] = f"no integer kernel on {state.target.name}{_not_folded(node)}"
        elif row.role is Role.CLIP:
            source = G.source(node)
            if source in state.codes_only and len(source.users) == 1:
                state.codes_only.add(node)
        elif state.weight_only_reason(row) or _is_stored(state, row, choice):  # also with 4 bits
            _choose_weight_only(state, node, row, choice)
        elif row.weight is None or choice.scheme.when is When.STATIC:
            _choose_static(state, node, row)
        elif (refusal := weight_only.refuse(node, row, choice, state.target)) is not None:
            state.reasons[node] = refusal
        else:
            state.weight_only[node] = weight_only.scheme_of(node, row, choice, state.target)


def _tie_tables(state: NodeDecisions) -> None:
    """Let a lookup in a table that is also a layer's weight read the codes of that layer."""
    for table in list(G.calls(state.graph)):
        row = row_of(table)
        if row is None or row.from_codes is None or not state.weight_only_reason(row):
            continue
        if state.choice(table).scheme.when is When.FLOAT:
            continue
        assert row.weight is not None
        users = G.source(table, row.weight).users
        for layer in users:
            scheme = state.weight_only.get(layer)
            if scheme is None or operator_key(layer) == row.key:  # another lookup in the table
                continue
            choice = state.choice(layer)
            scheme = weight_only.tied_table_scheme(table, scheme, choice, state.target)
            if scheme is not None:
                state.weight_only[layer] = state.weight_only[table] = scheme
                state.tied_tables[table] = layer
                state.reasons.pop(table, None)
                break
        stored = any(layer in state.integer for layer in users)
        if stored and state.reasons.get(table) == rules.TOO_SMALL:
            del state.reasons[table]  # the layer's codes are stored in any case
            scheme = state.choice(table).scheme
            state.weight_only[table] = weight_only.storage_scheme(
                operator_key(table), scheme, state.target
            )


def _is_stored(state: NodeDecisions, row: Op, choice: Choice) -> bool:
    return choice.scheme.when is When.NEVER and weight_only.is_stored(row, state.target)


def _choose_weight_only(state: NodeDecisions, node: fx.Node, row: Op, choice: Choice) -> None:
    scheme = weight_only.storage_scheme(row.key, choice.scheme, state.target)
    rule = state.target.kernels.get(row.key, KernelRule())
    refusal = rules.stored_weights(node) or weight_only.refuse_blocks(node, row, scheme)
    if refusal is None and not weight_only.is_stored(row, state.target):
        refusal = rule.refuse(node)
    if refusal is not None:
        state.reasons.setdefault(node, refusal)
    else:
        state.weight_only[node] = scheme


def _not_folded(node: fx.Node) -> str:
    """Return why a BatchNorm was not folded, as the end of a reason; "" for another node."""
    if node.target is not torch.ops.aten.batch_norm.default or not (why := why_not_folded(node)):
        return ""  # a rewrite for the target may have left one that could be folded
    return f", and not folded: {why}"


def _choose_static(state: NodeDecisions, node: fx.Node, row: Op) -> None:
    choice = state.choice(node)
    if (reason := state.slow.get(node)) is not None:
        state.reasons[node] = reason
        _choose_weight_only(state, node, row, choice)
        return
    requested = choice.scheme if row.weight is not None else choice.scheme.activations_only
    usable = Scheme() if row.role is Role.PASS else requested
    scheme, refusal = usable.first_match(state.target.schemes(row.key)), _refusal(state, node, row)
    if refusal is None and scheme is None:
        refusal = weight_only.no_kernel_reason(requested, choice, state.target)
    if row.role is Role.PASS and refusal is None:
        state.passthrough.add(node)
        if node.args[0] in state.codes_only:
            state.codes_only.add(node)
    elif refusal is not None or scheme is None:
        if scheme is not None and weight_only.is_stored(row, state.target):
            _choose_weight_only(state, node, row, choice)
        state.reasons.setdefault(node, refusal or "")
    else:
        rule = state.target.kernels[row.key]
        if rule.float_between_qdq:
            state.reasons[node] = "in float between dequantize and quantize"
        else:
            state.integer[node] = scheme
        if not rule.float_output:
            state.codes_only.add(node)


def _refusal(state: NodeDecisions, node: fx.Node, row: Op) -> str | None:
    """Return why an operator stays in float whatever the scheme, or None."""
    rule = state.target.kernels.get(row.key)
    if rule is None:
        if row.key in rules.PRODUCTS and (reason := rules.weight_operand_refusal(node)) is not None:
            return reason
        return state.target.no_kernel.get(row.key, f"no integer kernel on {state.target.name}")
    if (reason := rule.refuse(node)) is not None:
        return reason
    if rule.opportunistic and not state.target.integers_only:
        sources = [x for x in data_inputs(node) if isinstance(x, fx.Node)]
        if not any(x in state.codes_only for x in sources):
            return "its inputs are float"
        mixed = any(x.op == "call_function" and x not in state.codes_only for x in sources)
        if mixed and not _feeds_layer(state, node):
            return "one input is float and no layer reads the result"
        if _scales_channels(node) and not _feeds_layer(state, node):
            return "it scales channels and no layer reads the result"
        if row.role is Role.JOIN and not _feeds_integer_layer(state, node):
            return "no integer layer reads the result"
    return None


def _scales_channels(node: fx.Node) -> bool:
    """Return whether a node multiplies the last dimension by a constant vector."""
    constants = [n for n in node.all_input_nodes if n.op == "get_attr"]
    return operator_key(node) == "mul" and any(
        G.shape(c) == tuple(G.shape(node)[-1:]) for c in constants
    )


def _feeds_layer(state: NodeDecisions, node: fx.Node) -> bool:
    """Return whether a layer with weights, or the output, reads a result, perhaps moved or pooled.

    In a transformer none does: the sums between its blocks go to norms and to the next sum. As
    codes they would be rounded again and again, and dequantized for every norm.
    """
    for user in node.users:
        row = row_of(user)
        if user.op == "output" or (row is not None and row.weight is not None):
            return True
        if row is None or len(data_inputs(user)) > 1:
            continue
        known = row.role is Role.CLIP or row.key in state.target.kernels
        if known and _feeds_layer(state, user):
            return True
    return False


def _feeds_integer_layer(state: NodeDecisions, node: fx.Node) -> bool:
    """Return whether an integer layer reads a result, directly or through operators on codes.

    At the end of a network none does: there one scale for all joined tensors would be as wide as
    the widest one (boxes next to their scores).
    """
    queue, visited = [node], {node}
    while queue:
        for user in queue.pop().users:
            row = row_of(user) if user.op == "call_function" else None
            if row is None or user in visited or _stays_float(state, user, row):
                continue
            if row.weight is not None:
                return True
            visited.add(user)
            queue.append(user)
    return False


def _stays_float(state: NodeDecisions, node: fx.Node, row: Op) -> bool:
    scheme = state.choice(node).scheme
    if scheme.when is not When.STATIC and (row.weight is not None or scheme.when is When.FLOAT):
        return True
    rule = state.target.kernels.get(row.key)
    return row.role is not Role.CLIP and (rule is None or rule.refuse(node) is not None)


def _find_codes_needed(state: NodeDecisions) -> None:
    readers, on_codes = set(state.integer), state.target.file.passthrough_on_codes
    for node in reversed(list(G.calls(state.graph))):
        key = operator_key(node)
        needed = node in state.needs_codes or (node in state.codes_only and key in on_codes)
        if node in state.passthrough and needed:
            readers.add(node)
        if node in readers:
            rule = state.target.kernels[key]
            for source in data_inputs(node):
                if isinstance(source, fx.Node) and source is not rule.float_operand(node):
                    state.needs_codes.add(source)


def _fuse_clamps(state: NodeDecisions) -> None:
    """Fuse relu and clamp(0, x): quantizing to a range from 0 to at most x clamps as well."""
    for node in G.calls(state.graph):
        row, source = row_of(node), node.args[0] if node.args else None
        if row is None or row.role is not Role.CLIP or not isinstance(source, fx.Node):
            continue
        if node in state.reasons:  # left in float by the recipe
            continue
        codes_out = node in state.needs_codes or node in state.codes_only
        from_zero = row.bounds(node)[0] == 0
        key, target = operator_key(source), state.target
        free = key not in target.fixed_outputs and key not in target.same_parameters
        saturates = from_zero and free  # the output's parameters are chosen so that they clamp
        if source in state.integer and len(source.users) == 1 and codes_out and saturates:
            state.fused_into[node] = source
            state.codes_only.discard(source)
            state.needs_codes.discard(source)
            state.codes_only.add(node)
        elif source in state.integer:
            if codes_out and target.kernels[key].single_dtype_output:
                state.needs_codes.add(source)  # the runtime drops the clamp, and its codes clamp
            state.reasons[node] = "clamps in float between dequantize and quantize"
        else:
            state.reasons[node] = "its input is float"


def _float_reasons(state: NodeDecisions) -> str:
    reasons = [f"{G.name_of(n)} ({r})" for n, r in state.reasons.items()][:3]
    return "; ".join(reasons) or "it has no operator with weights"
