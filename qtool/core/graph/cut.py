"""Cutting a graph into blocks where least is alive, so that each can be computed by itself.

Sizes are no values that go from block to block: each block reads them off a tensor that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from math import inf
from typing import Any

import torch
from torch import fx

from qtool.core.errors import CaptureError
from qtool.core.graph.edit import set_attr_value
from qtool.core.graph.float_graph import FloatGraph, Input
from qtool.core.graph.nodes import NAME, hint, name_of, output_nodes, placeholders, shape, value

aten = torch.ops.aten
_NEVER = 10**30  # bytes


class Block:
    """Some calls of a graph, in order.

    inputs, outputs: the tensors, as nodes of the whole graph, that go in and out.
    """

    def __init__(self, whole: FloatGraph, calls: Sequence[fx.Node]) -> None:
        self.whole, self.calls = whole, tuple(calls)
        self.inputs = self._reads()
        self.outputs: tuple[fx.Node, ...] = ()

    def _reads(self) -> tuple[fx.Node, ...]:
        own = set(self.calls)
        outside = {n for c in self.calls for n in c.all_input_nodes if n not in own}
        tensors = [n for n in outside if n.op != "get_attr" and not _is_size(n)]
        symbols = {str(value(s)) for n in outside if _is_size(n) for s in _roots(n) if s not in own}
        known = {str(size) for n in tensors for size in shape(n)}
        for given in placeholders(self.whole.graph):
            missing = {str(size) for size in shape(given)} & (symbols - known)
            if missing and given not in tensors:
                tensors.append(given)
                known |= missing
        if lost := symbols - known:
            raise CaptureError(
                f"the size {min(lost)} is known inside of the model alone, so that it cannot "
                "be taken block by block; convert it as a whole"
            )
        order = {n: i for i, n in enumerate(self.whole.graph.nodes)}
        return tuple(sorted(tensors, key=order.__getitem__))

    @property
    def only_outputs(self) -> bool:
        """Whether nothing but outputs of the whole come of it, and it has no weights: nothing waits
        for its values."""
        stored = any(a.op == "get_attr" for c in self.calls for a in c.all_input_nodes)
        given = set(output_nodes(self.whole.graph))
        inside = {*self.calls, self.whole.graph.output_node()}
        return (
            not stored
            and given.issuperset(self.outputs)
            and all(inside.issuperset(n.users) for n in self.outputs)
        )

    @property
    def name(self) -> str:
        """Its first and last layer."""
        layers = [n for n in self.calls if any(a.op == "get_attr" for a in n.all_input_nodes)]
        ends = layers or list(self.calls)
        return f"{name_of(ends[0])} ... {name_of(ends[-1])}"

    def graph(self, read: Callable[[fx.Node], torch.Tensor], example: Sequence[Any]) -> FloatGraph:
        """A graph of its own.

        Args:
            read: the values of a get_attr node. example: those of `reads`.
        """
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        tensors = {
            str(a.target): read(a)
            for c in self.calls
            for a in c.all_input_nodes
            if a.op == "get_attr"
        }
        for node in self.inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = {"val": value(node), NAME: self.tensor_name(node)}
        own = set(self.calls)
        for node in self.calls:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source not in copies:
                    copies[source] = graph.node_copy(source)
                elif _is_size(source) and source not in own:
                    self._size(graph, source, copies)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[n] for n in self.outputs))
        module = fx.GraphModule(tensors, graph)
        for node in module.graph.nodes:
            node.meta = dict(node.meta)
            if node.op == "get_attr":
                set_attr_value(module, node)
        inputs = tuple(self._input(n) for n in self.inputs)
        outputs = tuple(self.tensor_name(n) for n in self.outputs)
        whole = self.whole
        called = (tuple(example), dict[str, Any]())
        return FloatGraph(module, inputs, outputs, called, whole.constraints, whole.dims)

    def tensor_name(self, node: fx.Node) -> str:
        """A tensor between blocks: as the whole graph's input or output, or its node."""
        ends = zip(output_nodes(self.whole.graph), self.whole.outputs, strict=True)
        return next((name for end, name in ends if end is node), name_of(node))

    def _input(self, node: fx.Node) -> Input:
        dims = self.whole.dims
        sizes = (s if isinstance(s, int) else s.node.maybe_as_int() or str(s) for s in shape(node))
        dtype = str(value(node).dtype).removeprefix("torch.")
        return Input(self.tensor_name(node), dtype, tuple(dims.get(str(s), s) for s in sizes))

    def _size(self, graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> None:
        """A size of the whole graph, read off a tensor that goes in here."""
        if node in copies:
            return
        if node.target is not aten.sym_size.int:
            for source in node.all_input_nodes:
                self._size(graph, source, copies)
            copies[node] = graph.node_copy(node, copies.__getitem__)
            return
        wanted = str(value(node))
        tensor, axis = next(
            (n, axis) for n in self.inputs for axis, s in enumerate(shape(n)) if str(s) == wanted
        )
        copies[node] = graph.call_function(aten.sym_size.int, (copies[tensor], axis))
        copies[node].meta = dict(node.meta)


def cut(whole: FloatGraph, most: int, alone: Container[fx.Node] = ()) -> list[Block]:
    """The blocks of a graph: of all ways to cut it into blocks with at most `most` bytes of weights
    (or of one call) the one in which the tensors that go from block to block are smallest.

    Args:
        alone: calls that are a block each.

    Raises:
        CaptureError: the model decides sizes by the values of its data.
    """
    calls = [n for n in whole.graph.nodes if n.op == "call_function" and not _is_size(n)]
    weights = [inf if n in alone else weight_bytes(n) for n in calls]
    places = _cheapest(_alive(calls), weights, most)
    blocks = [Block(whole, calls[i:j]) for i, j in itertools.pairwise(places)]
    ends = dict.fromkeys(output_nodes(whole.graph))
    for index, block in enumerate(blocks):
        later = {n for other in blocks[index + 1 :] for n in other.inputs}
        block.outputs = tuple(n for n in block.calls if n in later or n in ends)
    return blocks


def weight_bytes(node: fx.Node) -> int:
    """Bytes of the stored tensors that a call reads, in float32."""
    stored = (value(n) for n in node.all_input_nodes if n.op == "get_attr")
    return sum(4 * t.numel() for t in stored)


def _alive(calls: Sequence[fx.Node]) -> list[int]:
    """Bytes of what is read across each place between two calls: behind call 0, 1, ..."""
    at = {n: i for i, n in enumerate(calls)}
    changes = [0] * (len(calls) + 1)
    for node, i in at.items():
        last = max((at[u] for u in _readers(node) if u in at), default=i)
        if last > i:
            changes[i] += _bytes(node)
            changes[last] -= _bytes(node)
    return list(itertools.accumulate(changes))


def _readers(node: fx.Node) -> Iterable[fx.Node]:
    return (u for u in node.users if not _is_size(u))


def _bytes(node: fx.Node) -> int:
    """Of the node's tensor; several in one value cannot be kept. Whole numbers, of which sums and
    differences are exact."""
    found = value(node)
    if not isinstance(found, torch.Tensor):
        return _NEVER
    elements = 1
    for size in found.shape:
        elements *= hint(size)
    return elements * found.element_size()


def _cheapest(alive: Sequence[float], weights: Sequence[float], most: int) -> list[int]:
    """Where blocks begin and end; by dynamic programming over the last cut."""
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(weights) + 1):
        found, held = (inf, 0), 0.0
        for start in range(end - 1, -1, -1):
            held += weights[start]
            if held > most and start < end - 1:
                break
            cost = best[start][0] + alive[end - 1]
            if cost < found[0]:
                found = cost, start
        best.append(found)
    places = [len(weights)]
    while places[-1]:
        places.append(best[places[-1]][1])
    return places[::-1]


def _is_size(node: fx.Node) -> bool:
    """A number that a graph computes of sizes."""
    return node.op == "call_function" and isinstance(value(node), torch.SymInt | int | float | bool)


def _roots(node: fx.Node) -> list[fx.Node]:
    """The sizes of tensors that a size is computed of."""
    if node.target is aten.sym_size.int:
        return [node]
    return [root for source in node.all_input_nodes for root in _roots(source)]
