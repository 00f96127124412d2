"""From a canonical float graph and a target to the plan. Pure: nothing is changed or run.

1. Which nodes compute in integers (forward): heavy operators always, the light ones between them
   where an input already comes in codes; not those that the recipe leaves out, and no concat that
   no layer in integers reads: each part of it keeps parameters of its own.
2. Which values are wanted in codes (backward).
3. A clamp behind an integer node is fused where the output's quantization does its work.
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
from qtool.core.graph.onnx_subgraph import kept_kind
from qtool.core.ops import Op, Role, data_inputs, macs, row_of
from qtool.core.schemes import Scheme, When
from qtool.core.types import ObserverSpec
from qtool.planning import weight_only
from qtool.planning.node_decisions import Work, key
from qtool.planning.placement import place_points
from qtool.planning.plan import Decision, Execution, Point, QuantPlan
from qtool.planning.recipe import INPUT, Choice, Recipe
from qtool.planning.sharing import share
from qtool.planning.targets import Target, rules


def make_plan(
    graph: fx.Graph,
    target: Target,
    observer: ObserverSpec,
    recipe: Recipe | None = None,
    seen: Mapping[str, ObserverSpec] | None = None,
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
    choices = recipe.choices(_selectable(graph), layers)
    work = Work(graph, target, observer, choices, seen or {})
    _choose_integer(work)
    _share_tables(work)
    if not work.integer and not work.linears and layers is None:
        raise PlanError(
            f"nothing in this model can run in integers on {target.name}: "
            f"{_why_nothing(work)}; leave it in float, or choose another target"
        )
    _choose_wanted(work)
    _fuse_clips(work)
    place_points(work)
    alike = {n for n in work.integer if key(n) in target.same_parameters}
    points = share(work.points, graph, {G.name_of(n) for n in work.moves | alike})
    nodes = tuple(
        replace(_decision(work, n, points), codes_only=n in work.native) for n in G.calls(graph)
    )
    return QuantPlan(target.name, observer, recipe, points, nodes)


def _selectable(graph: fx.Graph) -> dict[str, str]:
    """What a recipe can select: name -> operator."""
    inputs = {G.name_of(n): INPUT for n in G.placeholders(graph)}
    return inputs | {G.name_of(n): _op(n) for n in G.calls(graph)}


def _op(node: fx.Node) -> str:
    row = row_of(node)
    if row is not None:
        return row.key
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return "result"
    if (kind := kept_kind(node)) is not None:
        return kind
    return str(node.target).removeprefix("aten.")


def _choose_integer(work: Work) -> None:
    for node in G.calls(work.graph):
        row, choice = row_of(node), work.choices[G.name_of(node)]
        if choice.scheme.when is When.FLOAT:
            work.reasons[node] = f"left in float by the recipe ({choice.because})"
        elif row is None:
            if _op(node) == "result":
                work.reasons[node] = f"one of those of {G.name_of(node.args[0])}"  # type: ignore[arg-type]  # a node
            elif kept_kind(node) is not None:
                work.reasons[node] = "kept as it is in the file"
            elif _gives_floats(node):
                work.reasons[node] = f"no integer kernel on {work.target.name}"
        elif row.role is Role.CLIP:
            source = node.args[0]
            if isinstance(source, fx.Node) and source in work.native and len(source.users) == 1:
                work.native.add(node)
        elif _stored(work, row):  # whatever else is asked for, 4 bits too
            _choose_weights(work, node, choice)
        elif row.weight is None or choice.scheme.when is When.STATIC:
            _choose_static(work, node, row)
        elif (refusal := weight_only.refuse(node, row, choice, work.target)) is not None:
            work.reasons[node] = refusal
        else:
            scheme = choice.scheme.of(work.target.schemes(row.key))
            assert scheme is not None
            work.linears[node] = scheme


def _share_tables(work: Work) -> None:
    """Tables that a layer has as its weight, too, are looked up in the codes of that layer."""
    for table in list(G.calls(work.graph)):
        row = row_of(table)
        if row is None or row.from_codes is None or not _stored(work, row):
            continue
        if work.choices[G.name_of(table)].scheme.when is When.FLOAT:
            continue
        for layer in table.args[row.weight].users:  # type: ignore[union-attr,index]  # nodes
            choice = work.choices[G.name_of(layer)]
            scheme = work.linears.get(layer)
            if layer is not table and scheme is not None:
                scheme = weight_only.as_table(table, scheme, choice, work.target)
            if layer is not table and scheme is not None:
                work.linears[layer] = work.linears[table] = scheme
                work.tables[table] = layer
                work.reasons.pop(table, None)
                break


def _stored(work: Work, row: Op) -> str:
    """Why the weights alone of an operator are stored as codes; "" where they are not."""
    target = work.target
    known = row.key in target.kernels or row.key in target.no_kernel
    return target.weights_only.get(row.key, "" if known else row.stored)


def _choose_weights(work: Work, node: fx.Node, choice: Choice) -> None:
    if (objection := rules.stored_weights(node)) is not None:
        work.reasons[node] = objection
    else:
        work.linears[node] = weight_only.alone(key(node), choice.scheme, work.target)


def _choose_static(work: Work, node: fx.Node, row: Op) -> None:
    choice = work.choices[G.name_of(node)]
    asked = choice.scheme if row.weight is not None else choice.scheme.on_activations
    scheme = (Scheme() if row.role is Role.PASS else asked).of(work.target.schemes(row.key))
    objection = _objection(work, node, row)
    if objection is None and scheme is None:
        objection = weight_only.no_kernel(asked, choice, work.target)
    if row.role is Role.PASS and objection is None:
        work.moves.add(node)
        if node.args[0] in work.native:
            work.native.add(node)
    elif objection is not None or scheme is None:
        work.reasons[node] = objection or ""
    else:
        rule = work.target.kernels[row.key]
        if rule.in_float:
            work.reasons[node] = "in float between dequantize and quantize"
        else:
            work.integer[node] = scheme
        if not rule.float_output:
            work.native.add(node)


def _objection(work: Work, node: fx.Node, row: Op) -> str | None:
    rule = work.target.kernels.get(row.key)
    if rule is None:
        if row.key in rules.PRODUCTS and (reason := rules.stored_operand(node)) is not None:
            return reason
        return work.target.no_kernel.get(row.key, f"no integer kernel on {work.target.name}")
    if (reason := rule.refuse(node)) is not None:
        return reason
    if rule.follows:
        sources = [x for x in data_inputs(node) if isinstance(x, fx.Node)]
        if not any(x in work.native for x in sources):
            return "its inputs are float"
        mixed = any(x.op == "call_function" and x not in work.native for x in sources)
        if mixed and not _for_a_layer(work, node):
            return "one of its inputs is float, and no layer reads its result"
        if row.role is Role.JOIN and not _for_integers(work, node):
            return "no layer in integers reads its result"
    return None


def _for_a_layer(work: Work, node: fx.Node) -> bool:
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
        known = row.role is Role.CLIP or row.key in work.target.kernels
        if known and _for_a_layer(work, user):
            return True
    return False


def _for_integers(work: Work, node: fx.Node) -> bool:
    """Whether a layer that computes in integers reads a result, directly or through what computes
    on codes. Nothing of the kind stands behind the end of a network: one scale for all that is
    joined there would be as wide as its widest part (boxes beside their scores)."""
    ahead, seen = [node], {node}
    while ahead:
        for user in ahead.pop().users:
            row = row_of(user) if user.op == "call_function" else None
            if row is None or user in seen or _stays_float(work, user, row):
                continue
            if row.weight is not None:
                return True
            seen.add(user)
            ahead.append(user)
    return False


def _stays_float(work: Work, node: fx.Node, row: Op) -> bool:
    scheme = work.choices[G.name_of(node)].scheme
    if scheme.when is not When.STATIC and (row.weight is not None or scheme.when is When.FLOAT):
        return True
    rule = work.target.kernels.get(row.key)
    return row.role is not Role.CLIP and (rule is None or rule.refuse(node) is not None)


def _choose_wanted(work: Work) -> None:
    takes_codes: set[fx.Node] = set(work.integer)
    for node in reversed(list(G.calls(work.graph))):
        row = row_of(node)
        on_codes = row is not None and row.key in work.target.file.on_codes and node in work.native
        if node in work.moves and (node in work.wanted or on_codes):
            takes_codes.add(node)
        if node in takes_codes:
            rule = work.target.kernels[key(node)]
            for source in data_inputs(node):
                if isinstance(source, fx.Node) and source is not rule.stays_float(node):
                    work.wanted.add(source)


def _fuse_clips(work: Work) -> None:
    """relu and clamp(0, x): the zero point at the lowest code and the range up to x do the same."""
    for node in G.calls(work.graph):
        row, source = row_of(node), node.args[0] if node.args else None
        if row is None or row.role is not Role.CLIP or not isinstance(source, fx.Node):
            continue
        if node in work.reasons:  # left in float by the recipe
            continue
        codes_out = node in work.wanted or node in work.native
        from_zero = row.bounds(node)[0] == 0
        free = key(source) not in (*work.target.fixed_outputs, *work.target.same_parameters)
        saturates = from_zero and free  # the output's parameters are chosen so that they clamp
        if source in work.integer and len(source.users) == 1 and codes_out and saturates:
            work.fused[node] = source
            work.native.discard(source)
            work.wanted.discard(source)
            work.native.add(node)
        elif source in work.integer:
            if codes_out and work.target.kernels[key(source)].one_output:
                work.wanted.add(source)  # the runtime drops the clamp, whose codes clamp as well
            work.reasons[node] = "clamps in float between dequantize and quantize"
        else:
            work.reasons[node] = "its input is float"


def _decision(work: Work, node: fx.Node, points: tuple[Point, ...]) -> Decision:
    name = G.name_of(node)
    names = {p.name for p in points}
    inputs = tuple(p.name for p in points if any(e.user == name for e in p.edges))
    output = name if name in names else None
    op = _op(node)
    first = next((n for n in work.graph.nodes if n.op == "placeholder"), None)
    batch = G.hint(G.shape(first)[0]) if first is not None and G.shape(first) else 1
    cost = macs(node, batch)
    if node in work.fused:
        return Decision(
            name, op, Execution.FUSED, f"into {G.name_of(work.fused[node])}", 0, (), output
        )
    if node in work.integer:
        why = "" if output or any(u in work.fused for u in node.users) else "result in float"
        return Decision(name, op, Execution.INTEGER, why, cost, inputs, output)
    if node in work.linears:
        scheme = work.linears[node]
        execution, why = weight_only.described(scheme)
        row = row_of(node)
        if row is not None and row.more and scheme.when is When.DYNAMIC:
            why = "its inputs are quantized in each step"
        elif node in work.tables:
            why = f"rows are looked up in the codes of {G.name_of(work.tables[node])}"
        elif row is not None and (reason := _stored(work, row)):
            why = f"{reason}: {weight_only.weights_of(scheme)}, the rest in float"
        return Decision(name, op, execution, why, cost, inputs, output)
    if output and node in work.moves:
        return Decision(name, op, Execution.PASS, "", cost, inputs, output)
    if not _gives_floats(node):
        return Decision(name, op, Execution.SHAPE, "not a float tensor", cost)
    why = work.reasons.get(node, "between float operators")
    return Decision(name, op, Execution.FLOAT, why, cost, inputs, output)


def _gives_floats(node: fx.Node) -> bool:
    """One result, or several of which one is float."""
    results = G.value(node)
    several = results if isinstance(results, list | tuple) else [results]
    return any(isinstance(r, torch.Tensor) and r.is_floating_point() for r in several)


def _why_nothing(work: Work) -> str:
    reasons = [f"{G.name_of(n)} ({r})" for n, r in work.reasons.items()][:3]
    return "; ".join(reasons) or "it has no operator with weights"
