"""Layers with integer weights and a float result: dynamic and weight-only quantization.

Recurrent layers are weight-only: int8 codes in the file, dequantized by the runtime. So are
convolutions where no integer kernel takes them and the runtime dequantizes once
(`FileForm.dequantizes_once`): the file is smaller, and as fast as in float. They are never dynamic:
ONNX Runtime's dynamic convolution is no faster than float32.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import Op
from qtool.core.schemes import Scheme, When
from qtool.core.types import Dynamic, Observed, ObserverSpec
from qtool.planning.plan import Edge, Execution, Kind, Point
from qtool.planning.recipe import Choice
from qtool.planning.targets import WEIGHT_ONLY_SCHEMES, Target

aten = torch.ops.aten
_ROUTING = frozenset(
    {
        aten.softmax.int,
        aten.sigmoid.default,
        aten.topk.default,
        operator.getitem,
        aten.reshape.default,
    }
)
"""Operators between a router and its experts, whose ids come from `topk`."""


def is_stored(row: Op, target: Target) -> bool:
    """Return whether the weights of an operator can be codes for a kernel in float, at no cost."""
    return row.key == "conv" and target.file.dequantizes_once


def refuse(node: fx.Node, row: Op, choice: Choice, target: Target) -> str | None:
    """Return why this layer does not support the chosen scheme, or None."""
    if choice.scheme.when not in row.supported_modes:
        return f"only linear layers support that ({choice.decided_by})"
    rule = target.kernels.get(row.key)
    if rule is None:
        return f"no integer kernel on {target.name}"
    if choice.scheme.first_match(target.schemes(row.key)) is None:
        return no_kernel_reason(choice.scheme, choice, target)
    return rule.refuse(node)


def scheme_of(node: fx.Node, row: Op, choice: Choice, target: Target) -> Scheme:
    """Return the scheme of a layer that is not refused."""
    scheme = choice.scheme.first_match(target.schemes(row.key))
    assert scheme is not None
    if choice.is_default and is_router(node):
        return in_eight_bits(scheme, row.key, target)
    return scheme


def no_kernel_reason(scheme: Scheme, choice: Choice, target: Target) -> str:
    return f"{target.name} has no kernel for {scheme} ({choice.decided_by})"


def storage_scheme(key: str, requested: Scheme, target: Target) -> Scheme:
    """Return the scheme closest to `requested` for an operator that is always weight-only."""
    types = (target.types.activation, target.types.weight)
    if key in target.dynamic:
        dynamic = (replace(s, when=When.DYNAMIC).with_defaults(*types) for s in WEIGHT_ONLY_SCHEMES)
        if (scheme := requested.first_match(dynamic)) is not None:
            return scheme
    own = [s for s in target.schemes(key) if s.when is When.NEVER]
    offered = own or [s.with_defaults(*types) for s in WEIGHT_ONLY_SCHEMES]
    return (
        Scheme(When.NEVER, weights=requested.weights, scales=requested.scales).first_match(offered)
        or offered[0]
    )


def refuse_blocks(node: fx.Node, row: Op, scheme: Scheme) -> str | None:
    """Return why the rows of a table are no whole blocks of a scheme, or None."""
    assert row.weight is not None
    width = int(G.shape(G.source(node, row.weight))[-1])
    if isinstance(scheme.scales, int) and width % scheme.scales:
        return f"its rows of {width} are not a multiple of blocks of {scheme.scales}"
    if row.key == "experts" and width == scheme.scales:
        return f"its rows of {width} have one block, and the kernel of experts needs two"
    return None


def separate_experts(layers: Mapping[fx.Node, Scheme]) -> Iterator[tuple[fx.Node, str]]:
    """Yield experts that one kernel cannot compute, and why; it computes both of their layers.

    Args:
        layers: layers with integer weights alone, and their schemes.
    """
    pairs = dict[fx.Node, list[fx.Node]]()
    for node in layers:
        if node.target is torch_ops.expert_linear:
            pairs.setdefault(G.source(node, 2), []).append(node)
    for nodes in pairs.values():
        if len(nodes) != 2 or layers[nodes[0]] != layers[nodes[1]]:
            reason = "its kernel computes both layers of the experts, in one scheme"
            yield from ((node, reason) for node in nodes)


def tied_table_scheme(
    table: fx.Node, scheme: Scheme, choice: Choice, target: Target
) -> Scheme | None:
    """Return the scheme of a layer whose weight is also a lookup table.

    By default 8 bits: 4-bit codes next to an 8-bit table would be larger and less accurate.

    Args:
        table: the lookup.
        scheme: the scheme chosen for the layer.
        choice: what the recipe decides about the layer.
        target: the target.

    Returns:
        None where lookup and layer cannot read the same codes.
    """
    assert scheme.weights is not None
    ids, weight = G.source(table), G.source(table, 1)
    if scheme.when is not When.NEVER or not isinstance(scheme.scales, int):
        return None
    if int(G.shape(weight)[-1]) % scheme.scales or G.value(ids).dtype is not torch.int64:
        return None
    if choice.is_default:
        scheme = in_eight_bits(scheme, "linear", target)
    assert scheme.weights is not None
    whole_bytes = scheme.weights.signed or scheme.weights.bits == 8  # of zero points, if any
    return scheme if whole_bytes else None


def in_eight_bits(scheme: Scheme, key: str, target: Target) -> Scheme:
    """Return a scheme for integer weights alone with weights of 8 bits, where a target has it."""
    eight_bit = Scheme(scheme.when, weights=target.types.weight, scales=scheme.scales)
    return eight_bit.first_match(target.schemes(key)) or scheme


def is_router(layer: fx.Node) -> bool:
    """Return whether a layer selects the experts of each token.

    It is small, and an error of it can choose another expert: it has 8 bits where others have 4.
    """
    queue, visited = list(layer.users), set[fx.Node]()
    while queue:
        node = queue.pop()
        if node.target is torch_ops.expert_linear:
            return True
        if node not in visited and node.target in _ROUTING:
            visited.add(node)
            queue += node.users
    return False


def execution_and_reason(scheme: Scheme, target: Target) -> tuple[Execution, str]:
    """Return how a layer with this scheme runs, and the reason for the plan."""
    if scheme.when is When.DYNAMIC:
        part = "row" if target.dynamic_rows else "batch"
        return Execution.DYNAMIC, f"its input is quantized with the range of each {part}"
    return Execution.WEIGHTS, f"{describe_weights(scheme)}, input and result in float"


def describe_weights(scheme: Scheme) -> str:
    """Return a few words about the weights, for instance "int8 weights"."""
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
    """Return the points of a dynamic or weight-only layer. Its bias stays float.

    Args:
        node: the layer.
        row: its operator.
        scheme: its scheme.
        target: the target.
        observer: observer of its weights.
        tables: lookups that read its codes.
    """
    assert row.weight is not None
    assert scheme.weights is not None
    points: list[Point] = []
    if scheme.when is When.DYNAMIC and not row.extra_weights:
        # (a recurrent kernel quantizes its input and its state itself)
        dynamic = Dynamic(target.types.activation, target.dynamic_rows)
        points.append(_point(node, row.inputs[0], "input", Kind.ACTIVATION, dynamic))
    signed = scheme.weights.signed
    weight = Observed(scheme.weights, observer, row.channel_axis, symmetric=signed)
    for at in row.extra_weights:
        if at < len(node.args) and isinstance(node.args[at], fx.Node):
            argument = G.schema(node).arguments[at].name
            points.append(_point(node, at, argument, Kind.WEIGHT, weight))
    if isinstance(scheme.scales, int):
        axis = 1 - row.channel_axis
        weight = Observed(scheme.weights, observer, axis, signed, block=scheme.scales)
    own = _point(node, row.weight, "weight", Kind.WEIGHT, weight)
    (edge,) = own.edges
    lookups = (replace(edge, user=G.name_of(table)) for table in tables)
    return [*points, replace(own, edges=(*lookups, edge))]


def _point(node: fx.Node, position: int, what: str, kind: Kind, spec: Observed | Dynamic) -> Point:
    source, name = G.source(node, position), G.name_of(node)
    return Point(f"{name}.{what}", kind, spec, (Edge(G.name_of(source), name),))
