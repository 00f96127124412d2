"""Where the points of a plan stand, and in which types.

A value has the type of the operator that computes it in codes. Who reads it in another type reads a
point of its own: requantized where the value can only be had in codes, else quantized once more
from the float value.
"""

from __future__ import annotations

from torch import fx

from qtool.core import graph as G
from qtool.core.ops import Role, data_inputs, row_of
from qtool.core.schemes import Scales, Scheme
from qtool.core.types import Derived, Fixed, Observed, ObserverSpec, QType, Requantized, Spec
from qtool.planning import weight_only
from qtool.planning.node_decisions import NodeDecisions, operator_key
from qtool.planning.plan import Edge, Kind, Point

WEIGHT_OBSERVER = ObserverSpec("minmax")
"""Of weights that no rule of a recipe names one for."""

LOW_BIT_OBSERVER = ObserverSpec("mse", (("bins", 2048),))
"""The same of weights alone in fewer than 8 bits, where clipping the largest pays."""


def place_points(decisions: NodeDecisions) -> None:
    """The points of every node, in the order of the graph: of tensors first, then of what is
    stored."""
    for node in decisions.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            _place_activation(decisions, node)
    for node in decisions.graph.nodes:
        row = row_of(node)
        if node in decisions.integer:
            _place_constants(decisions, node)
        elif (
            node in decisions.weight_only and node not in decisions.tied_tables and row is not None
        ):
            scheme = decisions.weight_only[node]
            by = decisions.choices[G.name_of(node)].weight_observer or _default_weight_observer(
                scheme
            )
            tables = [t for t, layer in decisions.tied_tables.items() if layer is node]
            decisions.points += weight_only.place_points(
                node, row, scheme, decisions.target, by, tables
            )


def _place_activation(decisions: NodeDecisions, node: fx.Node) -> None:
    """The point of a value; and one for each other type that it is read in."""
    if node not in decisions.needs_codes and node not in decisions.codes_only:
        return
    name, own, observer = G.name_of(node), _codes_type(decisions, node), _observer(decisions, node)
    everyone = node in decisions.codes_only or _single_dtype_output(decisions, node)
    readers: dict[QType, list[Edge]] = {own: []}
    for user in node.users:
        if everyone or user in decisions.integer or decisions.passes_codes(user):
            edge = Edge(name, G.name_of(user))
            readers.setdefault(_reader_type(decisions, user) or own, []).append(edge)
    fixed = (
        decisions.target.fixed_outputs.get(operator_key(node), ())
        if node in decisions.integer
        else ()
    )
    known = next((p for p in fixed if p.qtype == own), None)
    spec: Spec = _observed(decisions, observer, own) if known is None else Fixed(known)
    again = _computes_codes(decisions, node)
    for qtype, edges in readers.items():
        if qtype != own:
            spec = Requantized(name, qtype) if again else _observed(decisions, observer, qtype)
        found = Point(_point_name(decisions, node, qtype), Kind.ACTIVATION, spec, tuple(edges))
        decisions.points.append(found)


def _computes_codes(decisions: NodeDecisions, node: fx.Node) -> bool:
    return (
        node in decisions.integer or node in decisions.passthrough or node in decisions.codes_only
    )


def _codes_type(decisions: NodeDecisions, node: fx.Node) -> QType:
    """The type that a value has in codes: what its operator computes with; of what is moved, that
    of its source; of a float value, what its first reader takes."""
    if node in decisions.integer:
        return decisions.integer[node].activations or decisions.target.types.activation
    row, source = row_of(node), node.args[0] if node.args else None
    moved = (
        row is not None and row.role in (Role.PASS, Role.CLIP) and _computes_codes(decisions, node)
    )
    if moved and isinstance(source, fx.Node):
        return _codes_type(decisions, source)
    return _first_reader_type(decisions, node) or decisions.target.types.activation


def _reader_type(decisions: NodeDecisions, user: fx.Node) -> QType | None:
    """The type that a reader takes; None: as it comes."""
    return decisions.integer[user].activations if user in decisions.integer else None


def _first_reader_type(decisions: NodeDecisions, node: fx.Node) -> QType | None:
    for user in node.users:
        found = (
            _first_reader_type(decisions, user)
            if decisions.passes_codes(user)
            else _reader_type(decisions, user)
        )
        if found is not None:
            return found
    return None


def _point_name(decisions: NodeDecisions, node: fx.Node, qtype: QType) -> str:
    """The name of the point that has a value in this type."""
    own = qtype == _codes_type(decisions, node)
    return G.name_of(node) if own else f"{G.name_of(node)}.{qtype}"


def _single_dtype_output(decisions: NodeDecisions, node: fx.Node) -> bool:
    return (
        node in decisions.integer
        and decisions.target.kernels[operator_key(node)].single_dtype_output
    )


def _observed(decisions: NodeDecisions, observer: ObserverSpec, qtype: QType) -> Observed:
    return Observed(qtype, observer, symmetric=decisions.target.types.symmetric)


def _observer(decisions: NodeDecisions, node: fx.Node) -> ObserverSpec:
    """Of the tensor a node computes; for a fused clamp the last rule for it or for its layer."""
    makers = [node, decisions.fused_into[node]] if node in decisions.fused_into else [node]
    last = max((decisions.choices[G.name_of(n)] for n in makers), key=lambda c: c.observer_rule)
    return last.observer or decisions.known_observers.get(G.name_of(node), decisions.observer)


def _default_weight_observer(scheme: Scheme) -> ObserverSpec:
    assert scheme.weights is not None
    return LOW_BIT_OBSERVER if scheme.weights.bits < 8 else WEIGHT_OBSERVER


def _weight_observer(decisions: NodeDecisions, node: fx.Node) -> ObserverSpec:
    return decisions.choices[G.name_of(node)].weight_observer or WEIGHT_OBSERVER


def _place_constants(decisions: NodeDecisions, node: fx.Node) -> None:
    row = row_of(node)
    assert row is not None
    name, scheme, by = G.name_of(node), decisions.integer[node], _weight_observer(decisions, node)
    assert scheme.activations is not None
    assert scheme.weights is not None
    for source in data_inputs(node):
        if isinstance(source, fx.Node) and source.op == "get_attr":
            edge = Edge(G.name_of(source), name)
            spec = _observed(decisions, by, scheme.activations)
            decisions.points.append(
                Point(f"{name}.{G.name_of(source)}", Kind.CONSTANT, spec, (edge,))
            )
    if row.weight is None:
        return
    weight, data = node.args[row.weight], node.args[0]
    assert isinstance(weight, fx.Node)
    assert isinstance(data, fx.Node)
    axis = None if scheme.scales is Scales.TENSOR else row.channel_axis
    w = Point(
        f"{name}.weight",
        Kind.WEIGHT,
        Observed(scheme.weights, by, axis, symmetric=True),
        (Edge(G.name_of(weight), name),),
    )
    decisions.points.append(w)
    bias = G.argument(node, row.bias, "bias") if row.bias is not None else None
    if isinstance(bias, fx.Node) and decisions.target.types.bias is not None:
        edge = Edge(G.name_of(bias), name)
        derived = Derived(_point_name(decisions, data, scheme.activations), w.name)
        decisions.points.append(Point(f"{name}.bias", Kind.BIAS, derived, (edge,)))
