"""Time of an operator in integers and in float, from its shapes.

A table has nanoseconds per unit of work, fitted to timings of chains of layers
(benchmarks/chain_costs.py). It is data: a plan depends on no machine.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from torch import fx

from qtool.core import graph as G
from qtool.core.ops import row_of
from qtool.passes.channel_sets import ChannelSet, channel_sets

LANES = 16
"""Channels that a vector of the measured CPU holds; kernels pad to them."""
_PRODUCTS = 4  # int8 products that an integer kernel adds up at once
_IMAGE = 4  # channels up to which the float kernel reads its input as it is

Work = Mapping[str, float]
"""Units of work of a kernel, by the names in a table."""


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution, for one sample.

    Attributes:
        inputs, outputs: channels of a group.
        groups: number of groups.
        taps: positions of the kernel.
        pixels: positions of the result.
        read: positions of the input.
    """

    inputs: int
    outputs: int
    groups: int
    taps: int
    pixels: int
    read: int

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.inputs == 1

    def float_work(self) -> Work:
        """Return the work of the float kernel, which stores channels in blocks of `LANES`."""
        results = self.pixels * self.groups * self.outputs
        if self.is_depthwise:
            taps = self.pixels * _padded(self.groups * self.outputs, LANES) * self.taps
            return {"call": 1, "depthwise tap": taps, "depthwise result": results}
        terms = self.groups * self.pixels * self.inputs * self.taps
        if self.outputs < LANES:
            return {"call": 1, "narrow mac": terms * self.outputs, "narrow term": terms}
        macs = terms * _padded(self.outputs, LANES)
        if self.inputs <= _IMAGE:
            return {"call": 1, "image mac": macs, "result": results}
        read = self.read * self.groups * self.inputs
        return {"call": 1, "mac": macs, "result": results, "input": read}

    def integer_work(self) -> Work:
        """Return the work of the integer kernel: columns, a matrix product, a rescaling."""
        channels, pixels = self.groups * self.outputs, self.pixels * self.groups
        results = self.pixels * channels
        if self.is_depthwise:
            taps = self.pixels * self.taps
            rest = taps if channels % LANES else 0
            work = {"depthwise pixel": taps, "depthwise rest": rest}
            return {
                "call": 1,
                "depthwise tap": taps * channels,
                "depthwise result": results,
                **work,
            }
        copies = pixels * self.taps if self.taps > 1 else 0  # into columns, one for each tap
        work = {"call": 1, "result": results, "tap": copies}
        terms = pixels * _padded(self.inputs * self.taps, _PRODUCTS)
        if self.outputs < LANES:
            return {**work, "narrow term": terms, "narrow pixel": pixels}
        return {**work, "mac": terms * _padded(self.outputs, LANES), "pixel": pixels}


@dataclass(frozen=True)
class CostTable:
    """Nanoseconds per unit of work of a runtime on one CPU, one thread.

    Attributes:
        measured: the runtime, its version and the CPU.
        in_float, in_integers: unit of work of a convolution -> its time.
        elementwise: operator key -> time of an element in float, and in integers.
        call: time of a call of another operator, without its elements.
        boundary, boundary_element: time of a QuantizeLinear or DequantizeLinear, and of each
            element, with the changes of layout that it brings.
    """

    measured: str
    in_float: Work
    in_integers: Work
    elementwise: Mapping[str, tuple[float, float]]
    call: float
    boundary: float
    boundary_element: float

    def convolution(self, sizes: Convolution) -> tuple[float, float]:
        """Return nanoseconds in float and in integers."""
        pairs = ((self.in_float, sizes.float_work()), (self.in_integers, sizes.integer_work()))
        in_float, in_integers = (sum(t[name] * n for name, n in work.items()) for t, work in pairs)
        return in_float, in_integers

    def node(self, node: fx.Node, batch: int) -> tuple[float, float]:
        """Return nanoseconds of a call of the graph for one of `batch` samples, (float, integers).

        Operators that no entry describes, and those that are part of others, cost nothing.
        """
        if (sizes := convolution_of(node, batch)) is not None:
            return self.convolution(sizes)
        row = row_of(node)
        each = self.elementwise.get(row.key) if row is not None else None
        if each is None:
            return 0.0, 0.0
        count = elements(node, batch)
        return self.call + each[0] * count, self.call + each[1] * count

    def edge(self, node: fx.Node, batch: int) -> float:
        """Return nanoseconds to quantize or dequantize the result of a node."""
        return self.boundary + self.boundary_element * elements(node, batch)


def convolution_of(node: fx.Node, batch: int) -> Convolution | None:
    """Return the sizes of a convolution at the captured shapes; None for another node."""
    row = row_of(node)
    if row is None or row.key != "conv":
        return None
    weight = [*map(G.hint, G.shape(G.source(node, 1)))]
    groups = G.integer(node, 6)
    return Convolution(
        inputs=weight[1],
        outputs=weight[0] // groups,
        groups=groups,
        taps=prod(weight[2:]),
        pixels=elements(node, batch) // weight[0],
        read=elements(G.source(node), batch) // (weight[1] * groups),
    )


def elements(node: fx.Node, batch: int) -> int:
    """Return the number of elements of a result for one of `batch` samples."""
    return max(1, prod(map(G.hint, G.shape(node))) // batch)


def _padded(count: int, block: int) -> int:
    return -(-count // block) * block


# The convolutions that a file stores with channels of zeros, where that is faster: see
# `passes.channel_padding`.


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
