"""The convolutions that a file stores with channels of zeros, where the table of costs says that
this is faster: see `passes.channel_padding`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from torch import fx

from qtool.core import graph as G
from qtool.passes.channel_sets import ChannelSet, channel_sets
from qtool.planning.speed.costs import LANES, Convolution, CostTable, convolution_of


def sizes_in_file(
    graph: fx.Graph, table: CostTable, integer: Container[fx.Node]
) -> dict[fx.Node, Convolution]:
    """Return the sizes of the convolutions around depthwise ones that the file pads.

    Args:
        graph: a canonical float graph.
        table: the costs of the target.
        integer: the nodes that run in integers; a depthwise convolution in float pads nothing.

    Returns:
        Convolution -> its sizes with channels of zeros; those without are left out.
    """
    batch, result = G.captured_batch(graph), dict[fx.Node, Convolution]()
    for each in channel_sets(graph):
        if each.channels % LANES and any(n in integer for n in each.depthwise):
            width = -(-each.channels // LANES) * LANES
            before = _sizes(each, result, each.channels, batch)
            after = _sizes(each, result, width, batch)
            if _time(after, table, integer) < _time(before, table, integer):
                result |= after
    return result


def _sizes(
    each: ChannelSet, known: Mapping[fx.Node, Convolution], width: int, batch: int
) -> dict[fx.Node, Convolution]:
    """Return the sizes of the convolutions of a set with this number of channels."""
    sizes = dict[fx.Node, Convolution]()
    for node, field in _changes(each):
        plain = sizes.get(node) or known.get(node) or convolution_of(node, batch)
        if plain is not None:  # linear layers have no costs
            sizes[node] = replace(plain, **{field: width})
    return sizes


def _changes(each: ChannelSet) -> Iterator[tuple[fx.Node, str]]:
    """Yield the layers of a set, with the size that its width changes."""
    yield from ((n, "outputs") for n in each.writers)
    yield from ((n, "groups") for n in each.depthwise)
    yield from ((n, "inputs") for n in each.readers)


def _time(
    sizes: Mapping[fx.Node, Convolution], table: CostTable, integer: Container[fx.Node]
) -> float:
    return sum(table.convolution(s)[node in integer] for node, s in sizes.items())
