"""The points of a plan: where tensors are quantized, and to which types.

A value has the type of the operator that computes it. A reader with another type reads a second
point: requantized where the value exists in codes only, else quantized from the float value.
"""

from __future__ import annotations

from torch import fx

from qtool.core import graph as G
from qtool.core.ops import Role, data_inputs, row_of
from qtool.core.schemes import Scales, Scheme
from qtool.core.types import Derived, Observed, ObserverSpec, QType, Requantized, Spec
from qtool.planning import weight_only
from qtool.planning.node_decisions import NodeDecisions, operator_key
from qtool.planning.plan import Edge, Kind, Point

WEIGHT_OBSERVER = ObserverSpec("minmax")
"""Default observer of weights."""

LOW_BIT_OBSERVER = ObserverSpec("mse", (("bins", 2048),))
"""Default observer of weight-only layers with fewer than 8 bits, where clipping outliers pays."""


def place_points(state: NodeDecisions) -> None:
    """Add the points of every node in graph order: activations first, then constants."""
    for node in state.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            _place_activation(state, node)
    for node in state.graph.nodes:
        row = row_of(node)
        if node in state.integer:
            _place_constants(state, node)
        elif node in state.weight_only and node not in state.tied_tables and row is not None:
            scheme = state.weight_only[node]
            observer = state.choice(node).weight_observer or _default_weight_observer(scheme)
            tables = [t for t, layer in state.tied_tables.items() if layer is node]
            state.points += weight_only.place_points(
                node, row, scheme, state.target, observer, tables
            )


def _place_activation(state: NodeDecisions, node: fx.Node) -> None:
    """Add the point of a value, and one for each other type that it is read in."""
    if node not in state.needs_codes and node not in state.codes_only:
        return
    name, own, observer = G.name_of(node), _codes_type(state, node), _observer(state, node)
    all_readers = node in state.codes_only or _single_dtype_output(state, node)
    readers: dict[QType, list[Edge]] = {own: []}
    for user in node.users:
        if all_readers or user in state.integer or state.passes_codes(user):
            edge = Edge(name, G.name_of(user))
            readers.setdefault(_reader_type(state, user) or own, []).append(edge)
    fixed = state.target.fixed_outputs.get(operator_key(node), ()) if node in state.integer else ()
    known = next((p for p in fixed if p.qtype == own), None)
    spec: Spec = _observed(state, observer, own) if known is None else known
    requantize = _computes_codes(state, node)
    for qtype, edges in readers.items():
        if qtype != own:
            spec = Requantized(name, qtype) if requantize else _observed(state, observer, qtype)
        name_in_type = _point_name(state, node, qtype)
        state.points.append(Point(name_in_type, Kind.ACTIVATION, spec, tuple(edges)))


def _computes_codes(state: NodeDecisions, node: fx.Node) -> bool:
    return node in state.integer or node in state.passthrough or node in state.codes_only


def _codes_type(state: NodeDecisions, node: fx.Node) -> QType:
    """Return the type of a value's codes.

    An integer operator's own type, a moved value's source's type, a float value's first reader's.
    """
    if node in state.integer:
        return state.integer[node].activations or state.target.types.activation
    row, source = row_of(node), node.args[0] if node.args else None
    passed = row is not None and row.role in (Role.PASS, Role.CLIP) and _computes_codes(state, node)
    if passed and isinstance(source, fx.Node):
        return _codes_type(state, source)
    return _first_reader_type(state, node) or state.target.types.activation


def _reader_type(state: NodeDecisions, user: fx.Node) -> QType | None:
    """Return the type that a reader needs; None if it takes any."""
    return state.integer[user].activations if user in state.integer else None


def _first_reader_type(state: NodeDecisions, node: fx.Node) -> QType | None:
    for user in node.users:
        qtype = (
            _first_reader_type(state, user)
            if state.passes_codes(user)
            else _reader_type(state, user)
        )
        if qtype is not None:
            return qtype
    return None


def _point_name(state: NodeDecisions, node: fx.Node, qtype: QType) -> str:
    """Return the name of the point of a value in this type."""
    own = qtype == _codes_type(state, node)
    return G.name_of(node) if own else f"{G.name_of(node)}.{qtype}"


def _single_dtype_output(state: NodeDecisions, node: fx.Node) -> bool:
    return node in state.integer and state.target.kernels[operator_key(node)].single_dtype_output


def _observed(state: NodeDecisions, observer: ObserverSpec, qtype: QType) -> Observed:
    return Observed(qtype, observer, symmetric=qtype in state.target.types.symmetric)


def _observer(state: NodeDecisions, node: fx.Node) -> ObserverSpec:
    """Return the observer of a node's result; of a fused clamp, by the last rule for the pair."""
    producers = [node, state.fused_into[node]] if node in state.fused_into else [node]
    last = max(map(state.choice, producers), key=lambda c: c.observer_rule)
    return last.observer or state.known_observers.get(G.name_of(node), state.observer)


def _default_weight_observer(scheme: Scheme) -> ObserverSpec:
    assert scheme.weights is not None
    return LOW_BIT_OBSERVER if scheme.weights.bits < 8 else WEIGHT_OBSERVER


def _place_constants(state: NodeDecisions, node: fx.Node) -> None:
    row = row_of(node)
    assert row is not None
    name, scheme = G.name_of(node), state.integer[node]
    observer = state.choice(node).weight_observer or WEIGHT_OBSERVER
    assert scheme.activations is not None
    assert scheme.weights is not None
    for source in data_inputs(node):
        if isinstance(source, fx.Node) and source.op == "get_attr":
            edge = Edge(G.name_of(source), name)
            spec = _observed(state, observer, scheme.activations)
            state.points.append(Point(f"{name}.{G.name_of(source)}", Kind.CONSTANT, spec, (edge,)))
    if row.weight is None:
        return
    weight, data = G.source(node, row.weight), G.source(node)
    axis = None if scheme.scales is Scales.TENSOR else row.channel_axis
    w = Point(
        f"{name}.weight",
        Kind.WEIGHT,
        Observed(scheme.weights, observer, axis, symmetric=True),
        (Edge(G.name_of(weight), name),),
    )
    state.points.append(w)
    bias = G.argument(node, row.bias, "bias") if row.bias is not None else None
    if isinstance(bias, fx.Node) and state.target.types.bias is not None:
        edge = Edge(G.name_of(bias), name)
        derived = Derived(_point_name(state, data, scheme.activations), w.name)
        state.points.append(Point(f"{name}.bias", Kind.BIAS, derived, (edge,)))
