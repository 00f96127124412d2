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
from qtool.planning.node_decisions import Work, key
from qtool.planning.plan import Edge, Kind, Point

WEIGHT_OBSERVER = ObserverSpec("minmax")
"""Of weights that no rule of a recipe names one for."""

NARROW_OBSERVER = ObserverSpec("mse", (("bins", 2048),))
"""The same of weights alone in fewer than 8 bits, where clipping the largest pays."""


def place_points(work: Work) -> None:
    """The points of every node, in the order of the graph: of tensors first, then of what is
    stored."""
    for node in work.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            _place_activation(work, node)
    for node in work.graph.nodes:
        row = row_of(node)
        if node in work.integer:
            _place_constants(work, node)
        elif node in work.linears and node not in work.tables and row is not None:
            scheme = work.linears[node]
            by = work.choices[G.name_of(node)].weight_observer or _usual_observer(scheme)
            tables = [t for t, layer in work.tables.items() if layer is node]
            work.points += weight_only.place(node, row, scheme, work.target, by, tables)


def _place_activation(work: Work, node: fx.Node) -> None:
    """The point of a value; and one for each other type that it is read in."""
    if node not in work.wanted and node not in work.native:
        return
    name, own, observer = G.name_of(node), _type(work, node), _observer(work, node)
    everyone = node in work.native or _one_output(work, node)
    readers: dict[QType, list[Edge]] = {own: []}
    for user in node.users:
        if everyone or user in work.integer or work.passes(user):
            edge = Edge(name, G.name_of(user))
            readers.setdefault(_taken(work, user) or own, []).append(edge)
    fixed = work.target.fixed_outputs.get(key(node), ()) if node in work.integer else ()
    known = next((p for p in fixed if p.qtype == own), None)
    spec: Spec = _observed(work, observer, own) if known is None else Fixed(known)
    again = _in_codes(work, node)
    for qtype, edges in readers.items():
        if qtype != own:
            spec = Requantized(name, qtype) if again else _observed(work, observer, qtype)
        found = Point(_point(work, node, qtype), Kind.ACTIVATION, spec, tuple(edges))
        work.points.append(found)


def _in_codes(work: Work, node: fx.Node) -> bool:
    return node in work.integer or node in work.moves or node in work.native


def _type(work: Work, node: fx.Node) -> QType:
    """The type that a value has in codes: what its operator computes with; of what is moved, that
    of its source; of a float value, what its first reader takes."""
    if node in work.integer:
        return work.integer[node].activations or work.target.types.activation
    row, source = row_of(node), node.args[0] if node.args else None
    moved = row is not None and row.role in (Role.PASS, Role.CLIP) and _in_codes(work, node)
    if moved and isinstance(source, fx.Node):
        return _type(work, source)
    return _read_type(work, node) or work.target.types.activation


def _taken(work: Work, user: fx.Node) -> QType | None:
    """The type that a reader takes; None: as it comes."""
    return work.integer[user].activations if user in work.integer else None


def _read_type(work: Work, node: fx.Node) -> QType | None:
    for user in node.users:
        found = _read_type(work, user) if work.passes(user) else _taken(work, user)
        if found is not None:
            return found
    return None


def _point(work: Work, node: fx.Node, qtype: QType) -> str:
    """The name of the point that has a value in this type."""
    own = qtype == _type(work, node)
    return G.name_of(node) if own else f"{G.name_of(node)}.{qtype}"


def _one_output(work: Work, node: fx.Node) -> bool:
    return node in work.integer and work.target.kernels[key(node)].one_output


def _observed(work: Work, observer: ObserverSpec, qtype: QType) -> Observed:
    return Observed(qtype, observer, symmetric=work.target.types.symmetric)


def _observer(work: Work, node: fx.Node) -> ObserverSpec:
    """Of the tensor a node computes; for a fused clamp the last rule for it or for its layer."""
    makers = [node, work.fused[node]] if node in work.fused else [node]
    last = max((work.choices[G.name_of(n)] for n in makers), key=lambda c: c.rank)
    return last.observer or work.seen.get(G.name_of(node), work.observer)


def _usual_observer(scheme: Scheme) -> ObserverSpec:
    assert scheme.weights is not None
    return NARROW_OBSERVER if scheme.weights.bits < 8 else WEIGHT_OBSERVER


def _weight_observer(work: Work, node: fx.Node) -> ObserverSpec:
    return work.choices[G.name_of(node)].weight_observer or WEIGHT_OBSERVER


def _place_constants(work: Work, node: fx.Node) -> None:
    row = row_of(node)
    assert row is not None
    name, scheme, by = G.name_of(node), work.integer[node], _weight_observer(work, node)
    assert scheme.activations is not None
    assert scheme.weights is not None
    for source in data_inputs(node):
        if isinstance(source, fx.Node) and source.op == "get_attr":
            edge = Edge(G.name_of(source), name)
            spec = _observed(work, by, scheme.activations)
            work.points.append(Point(f"{name}.{G.name_of(source)}", Kind.CONSTANT, spec, (edge,)))
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
    work.points.append(w)
    bias = G.argument(node, row.bias, "bias") if row.bias is not None else None
    if isinstance(bias, fx.Node) and work.target.types.bias is not None:
        edge = Edge(G.name_of(bias), name)
        derived = Derived(_point(work, data, scheme.activations), w.name)
        work.points.append(Point(f"{name}.bias", Kind.BIAS, derived, (edge,)))
