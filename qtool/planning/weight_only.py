"""Layers with integer weights and a float result: dynamic, and weights alone.

Recurrent layers have the second one alone: int8 codes in the file, dequantized by the runtime.

Convolutions have none: ONNX Runtime's dynamic convolution runs in float32 speed at best, and its
4-bit kernel is one for matrix products.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.ops import Op
from qtool.core.schemes import Scheme, When
from qtool.core.types import Dynamic, Observed, ObserverSpec
from qtool.planning.plan import Edge, Execution, Kind, Point
from qtool.planning.recipe import Choice
from qtool.planning.targets import WEIGHT_ONLY_SCHEMES, Target


def refuse(node: fx.Node, row: Op, choice: Choice, target: Target) -> str | None:
    """Why this layer cannot have the scheme that was chosen, or None."""
    if choice.scheme.when not in row.supported_modes:
        return f"only linear layers have a form for that ({choice.decided_by})"
    rule = target.kernels.get(row.key)
    if rule is None:
        return f"no integer kernel on {target.name}"
    if choice.scheme.first_match(target.schemes(row.key)) is None:
        return no_kernel_reason(choice.scheme, choice, target)
    return rule.refuse(node)


def no_kernel_reason(scheme: Scheme, choice: Choice, target: Target) -> str:
    return f"{target.name} has no kernel for {scheme} ({choice.decided_by})"


def storage_scheme(key: str, asked: Scheme, target: Target) -> Scheme:
    """The scheme of an operator whose weights are always stored alone: as near as can be to what
    was asked for."""
    usual = (target.types.activation, target.types.weight)
    if key in target.dynamic:
        each_run = (
            replace(s, when=When.DYNAMIC).with_defaults(*usual) for s in WEIGHT_ONLY_SCHEMES
        )
        if (found := asked.first_match(each_run)) is not None:
            return found
    offered = [s.with_defaults(*usual) for s in WEIGHT_ONLY_SCHEMES]
    stored = Scheme(When.NEVER, weights=asked.weights, scales=asked.scales)
    return stored.first_match(offered) or offered[0]


def tied_table_scheme(
    table: fx.Node, scheme: Scheme, choice: Choice, target: Target
) -> Scheme | None:
    """The scheme of a layer whose weight is also a table that rows are looked up in, if both can
    read the same codes; None where they cannot.

    Where nobody asks for another, 8 bits: codes of 4 bits beside a table of 8 are larger and worse.

    table: the lookup. choice: what the recipe says of the layer.
    """
    assert scheme.weights is not None
    ids, weight = table.args[:2]
    assert isinstance(ids, fx.Node)
    assert isinstance(weight, fx.Node)
    if scheme.when is not When.NEVER or not isinstance(scheme.scales, int):
        return None
    if int(G.shape(weight)[-1]) % scheme.scales or G.value(ids).dtype is not torch.int64:
        return None
    if choice.is_default:
        wanted = Scheme(When.NEVER, weights=target.types.weight, scales=scheme.scales)
        scheme = wanted.first_match(target.schemes("linear")) or scheme
    assert scheme.weights is not None
    whole_bytes = scheme.weights.signed or scheme.weights.bits == 8  # the zero points, if any
    return scheme if whole_bytes else None


def execution_and_reason(scheme: Scheme) -> tuple[Execution, str]:
    """How such a layer is executed, and the reason that the plan gives."""
    if scheme.when is When.DYNAMIC:
        return Execution.DYNAMIC, "its input is quantized with the range of each batch"
    return Execution.WEIGHTS, f"{describe_weights(scheme)}, input and result in float"


def describe_weights(scheme: Scheme) -> str:
    """Its weights in a few words."""
    assert scheme.weights is not None
    words = f"{scheme.weights.bits}-bit weights" if scheme.weights.bits < 8 else "int8 weights"
    return f"{words} in blocks of {scheme.scales}" if isinstance(scheme.scales, int) else words


def place_points(
    node: fx.Node,
    row: Op,
    scheme: Scheme,
    target: Target,
    observer: ObserverSpec,
    tables: Iterable[fx.Node] = (),
) -> list[Point]:
    """The points of such a layer. Its bias stays float.

    observer: of its weights. tables: lookups that read its codes.
    """
    assert row.weight is not None
    assert scheme.weights is not None
    found: list[Point] = []
    if (
        scheme.when is When.DYNAMIC and not row.extra_weights
    ):  # a recurrent kernel rounds its state, too
        seen = Dynamic(target.types.activation)
        found.append(_point(node, row.inputs[0], "input", Kind.ACTIVATION, seen))
    signed = scheme.weights.signed
    weight = Observed(scheme.weights, observer, row.channel_axis, symmetric=signed)
    for at in row.extra_weights:
        if at < len(node.args) and isinstance(node.args[at], fx.Node):
            called = node.target._schema.arguments[at].name  # type: ignore[union-attr]  # an OpOverload
            found.append(_point(node, at, called, Kind.WEIGHT, weight))
    if isinstance(scheme.scales, int):
        along = 1 - row.channel_axis
        weight = Observed(scheme.weights, observer, along, signed, block=scheme.scales)
    own = _point(node, row.weight, "weight", Kind.WEIGHT, weight)
    (edge,) = own.edges
    looked_up = (replace(edge, user=G.name_of(table)) for table in tables)
    return [*found, replace(own, edges=(*looked_up, edge))]


def _point(node: fx.Node, position: int, what: str, kind: Kind, spec: Observed | Dynamic) -> Point:
    source, name = node.args[position], G.name_of(node)
    assert isinstance(source, fx.Node)
    return Point(f"{name}.{what}", kind, spec, (Edge(G.name_of(source), name),))
