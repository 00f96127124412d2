"""Sets of tensors that must have the same number of channels, and what reads and writes them.

Channels are axis 1 of an image [N, C, ...], or of its mean [N, C]. Convolutions and linear layers
change their number; depthwise convolutions, elementwise operators and pools keep it, so their
operands and results are one set. A set whose writers and readers are all known can be widened with
channels of zeros: see `channel_padding`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from networkx.utils import UnionFind
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import row_of

aten = torch.ops.aten

_KEEP = frozenset(
    {
        *("relu", "clip", "hard_swish", "hard_sigmoid", "sigmoid", "silu", "gelu", "tanh", "elu"),
        *("leaky_relu", "rescale", "global_average_pool", "average_pool", "max_pool"),
    }
)
"""Keys of operators on one tensor whose result has its channels, each computed by itself."""

_CODES = frozenset({torch_ops.quantize, torch_ops.dequantize})
_PAIRS = frozenset({aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor})
_SHAPES = frozenset({aten.squeeze.dims, aten.squeeze.dim, aten.flatten.using_ints})


@dataclass
class ChannelSet:
    """Tensors with the same channels.

    Attributes:
        channels: their number.
        fixed: something else reads or writes one of the tensors.
        nodes: calls inside the set, whose results are its tensors.
        writers: dense layers whose output channels they are.
        depthwise: convolutions inside the set, with a group for each channel.
        readers: dense layers whose input channels they are.
        constants: (call, position) of stored operands with a value for each channel.
    """

    channels: int
    fixed: bool = False
    nodes: list[fx.Node] = field(default_factory=list)
    writers: list[fx.Node] = field(default_factory=list)
    depthwise: list[fx.Node] = field(default_factory=list)
    readers: list[fx.Node] = field(default_factory=list)
    constants: list[tuple[fx.Node, int]] = field(default_factory=list)


def channel_sets(graph: fx.Graph) -> Iterator[ChannelSet]:
    """Yield the sets of a graph that have a depthwise convolution and are not fixed.

    Args:
        graph: a canonical float graph, or one with quantize and dequantize between its operators.
    """
    if not any(map(is_depthwise, G.calls(graph))):
        return
    roots = UnionFind()
    for node in G.calls(graph):
        if _is_inside(node):
            for source in _operands(node):
                roots.union(node, source)
    sets: dict[fx.Node, ChannelSet] = {}

    def set_of(node: fx.Node) -> ChannelSet:
        shape = G.shape(node)
        channels = shape[1] if len(shape) > 1 and isinstance(shape[1], int) else 0
        return sets.setdefault(roots[node], ChannelSet(channels, fixed=channels == 0))

    for node in graph.nodes:
        if node.op in ("placeholder", "call_function") and _is_image(node):
            _add(set_of(node), node)
    yield from (s for s in sets.values() if s.depthwise and not s.fixed and s.writers)


def is_dense(node: fx.Node) -> bool:
    """Return whether a layer mixes all its input channels, with stored weights."""
    if node.target is torch_ops.conv:
        return bool(node.args[6] == 1) and _has_stored_weights(node)
    is_linear = node.target is aten.linear.default and G.rank(node) == 2
    return is_linear and _has_stored_weights(node)


def is_depthwise(node: fx.Node) -> bool:
    """Return whether a convolution has one input and one output channel in each group."""
    if node.target is not torch_ops.conv or node.args[6] == 1 or not _has_stored_weights(node):
        return False
    outputs, width = G.shape(G.source(node, 1))[:2]
    return bool(outputs == node.args[6] and width == 1)


def _has_stored_weights(node: fx.Node) -> bool:
    return _is_stored(G.source(node, 1))


def _is_stored(node: fx.Node) -> bool:
    """Return whether a tensor is stored, as floats or as codes."""
    if node.target in (torch_ops.dequantize, torch_ops.dequantize_once):
        node = G.source(node)
    return node.op == "get_attr"


def _is_image(node: fx.Node) -> bool:
    return G.is_tensor(node) and G.rank(node) >= 2


def _operands(node: fx.Node) -> list[fx.Node]:
    """Return the operands of a call inside a set that are not stored."""
    operands = node.args[: 2 if node.target in _PAIRS else 1]
    return [a for a in operands if isinstance(a, fx.Node) and not _is_stored(a)]


def _is_inside(node: fx.Node) -> bool:
    """Return whether the channels of a result are those of the operands."""
    if node.op != "call_function" or not _is_image(node):
        return False
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or not _is_image(source):
        return False
    if not all(isinstance(G.shape(n)[1], int) for n in (node, source)):
        return False  # comparing a dynamic size would fix it
    if node.target in _PAIRS:
        return _pairs_by_channel(node)
    row, same = row_of(node), bool(G.shape(node)[1] == G.shape(source)[1])
    if is_depthwise(node) or node.target in _CODES or (row is not None and row.key in _KEEP):
        return same
    if node.target is aten.mean.dim:
        return same and all(d % G.rank(source) > 1 for d in G.integers(node, 1))
    if node.target is aten.constant_pad_nd.default:
        return same and len(G.items(node, 1)) <= 2 * (G.rank(node) - 2)
    return same and _keeps_shape(node, source)


def _pairs_by_channel(node: fx.Node) -> bool:
    """Return whether each operand has the result's channels on axis 1, or one value for all."""
    rank, width = G.rank(node), G.shape(node)[1]
    for operand in node.args[:2]:
        if not isinstance(operand, fx.Node):
            continue
        shape = G.shape(operand)
        axis = 1 - (rank - len(shape))  # of the channels, after broadcasting
        if axis >= 0 and not (isinstance(shape[axis], int) and shape[axis] in (1, width)):
            return False
        if not _is_stored(operand) and not (len(shape) == rank and shape[1] == width):
            return False
    return True


def _keeps_shape(node: fx.Node, source: fx.Node) -> bool:
    """Return whether a reshape only drops or adds axes of size 1 behind the channels."""
    if node.target not in (*_SHAPES, aten.reshape.default):
        return False
    short, long = sorted((G.shape(node), G.shape(source)), key=len)
    if not all(isinstance(size, int) and size == 1 for size in long[len(short) :]):
        return False
    literal = node.target is not aten.reshape.default or isinstance(G.items(node, 1)[1], int)
    return literal and G.same_sizes(short, long[: len(short)])


def _add(own: ChannelSet, node: fx.Node) -> None:
    """Add a call, and what reads its result, to the set of the result."""
    if _is_inside(node):
        own.nodes.append(node)
        if is_depthwise(node):
            own.depthwise.append(node)
        own.constants += [(node, i) for i in _stored_by_channel(node)]
    elif is_dense(node):
        own.writers.append(node)
    else:
        own.fixed = True
    for user in node.users:
        if is_dense(user) and user.args[0] is node:
            if user not in own.readers:
                own.readers.append(user)
            own.fixed |= node in user.args[1:]
        elif not _is_inside(user) or node not in _operands(user):
            own.fixed = True


def _stored_by_channel(node: fx.Node) -> list[int]:
    """Return the positions of stored operands of a sum or product with a value for each channel."""
    if node.target not in _PAIRS:
        return []
    return [
        i
        for i, operand in enumerate(node.args[:2])
        if isinstance(operand, fx.Node)
        and _is_stored(operand)
        and channel_axis(node, operand) is not None
    ]


def channel_axis(node: fx.Node, operand: fx.Node) -> int | None:
    """Return the axis of a stored operand that is the channels of a sum or product, if any."""
    axis = 1 - (G.rank(node) - G.rank(operand))
    return axis if axis >= 0 and G.shape(operand)[axis] != 1 else None
