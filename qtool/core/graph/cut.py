"""Cutting a graph into blocks where the least data is live, so that each can run by itself.

Sizes are not passed from block to block: each block reads them from a tensor that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from math import inf, prod
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core.errors import CaptureError
from qtool.core.graph.edit import set_attr_value
from qtool.core.graph.float_graph import FloatGraph
from qtool.core.graph.nodes import (
    NAME,
    OTHER_READS,
    attribute_reads,
    hint,
    name_of,
    output_nodes,
    placeholders,
    shape,
    value,
)
from qtool.core.random_inputs import Input
from qtool.core.remedies import CallEdit

aten = torch.ops.aten
_NEVER = 10**30  # bytes
LATER_READS = "later_reads"
"""Key of a result's metadata: how often later blocks read it. The output of the whole has none."""


class Block:
    """Consecutive calls of a graph.

    Attributes:
        whole: the graph.
        calls: its nodes in this block.
        inputs: nodes of the whole graph whose tensors the block reads.
        outputs: nodes of the block whose tensors later blocks or the caller read.
    """

    def __init__(self, whole: FloatGraph, calls: Sequence[fx.Node]) -> None:
        self.whole, self.calls = whole, tuple(calls)
        self.inputs = self._find_inputs()
        self.outputs: tuple[fx.Node, ...] = ()

    def _find_inputs(self) -> tuple[fx.Node, ...]:
        own = set(self.calls)
        outside = {n for c in self.calls for n in c.all_input_nodes if n not in own}
        tensors = [n for n in outside if n.op != "get_attr" and not _is_size(n)]
        symbols = {str(value(s)) for n in outside if _is_size(n) for s in _roots(n) if s not in own}
        known = {str(size) for n in tensors for size in shape(n)}
        for placeholder in placeholders(self.whole.graph):
            missing = {str(size) for size in shape(placeholder)} & (symbols - known)
            if missing and placeholder not in tensors:
                tensors.append(placeholder)
                known |= missing
        if unknown := symbols - known:
            raise CaptureError(
                f"the size {min(unknown)} is computed inside the model, so it cannot be "
                "converted block by block",
                CallEdit("convert it as a whole"),
            )
        order = {n: i for i, n in enumerate(self.whole.graph.nodes)}
        return tuple(sorted(tensors, key=order.__getitem__))

    @property
    def only_outputs(self) -> bool:
        """True if the block has no weights and feeds only graph outputs."""
        has_weights = any(a.op == "get_attr" for c in self.calls for a in c.all_input_nodes)
        graph_outputs = set(output_nodes(self.whole.graph))
        inside = {*self.calls, self.whole.graph.output_node()}
        return (
            not has_weights
            and graph_outputs.issuperset(self.outputs)
            and all(inside.issuperset(n.users) for n in self.outputs)
        )

    @property
    def name(self) -> str:
        """The names of its first and last layer."""
        layers = [n for n in self.calls if any(a.op == "get_attr" for a in n.all_input_nodes)]
        ends = layers or list(self.calls)
        return f"{name_of(ends[0])} ... {name_of(ends[-1])}"

    def graph(self, read: Callable[[fx.Node], torch.Tensor], example: Sequence[Any]) -> FloatGraph:
        """Return the block as a graph.

        Args:
            read: get_attr node -> its tensor.
            example: values of `inputs`.
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
            copies[node].meta = {"val": value(node), NAME: name_of(node)}
        own = set(self.calls)
        for node in self.calls:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source not in copies:
                    copies[source] = graph.node_copy(source)
                elif _is_size(source) and source not in own:
                    self._size(graph, source, copies)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[n] for n in self.outputs))
        for node in set(self.outputs) - set(output_nodes(self.whole.graph)):
            copies[node].meta[LATER_READS] = sum(
                argument is node
                for user in node.users
                if user not in own and not _is_size(user)
                for argument in pytree.tree_leaves((user.args, user.kwargs))
            )
        module, reads = fx.GraphModule(tensors, graph), attribute_reads(self.whole.graph)
        own_reads = attribute_reads(graph)
        for node in module.graph.nodes:
            node.meta = dict(node.meta)
            if node.op == "get_attr":
                set_attr_value(module, node)
                node.meta[OTHER_READS] = reads[str(node.target)] - own_reads[str(node.target)]
        inputs = tuple(self._input(n) for n in self.inputs)
        outputs = tuple(self.tensor_name(n) for n in self.outputs)
        whole = self.whole
        arguments = (tuple(example), dict[str, Any]())
        return FloatGraph(
            module,
            inputs,
            outputs,
            arguments,
            whole.constraints,
            whole.dims,
            device=whole.device,
        )

    def tensor_name(self, node: fx.Node) -> str:
        """Return the name of a tensor: of the whole graph's output, or of its node."""
        ends = zip(output_nodes(self.whole.graph), self.whole.outputs, strict=True)
        return next((name for end, name in ends if end is node), name_of(node))

    def _input(self, node: fx.Node) -> Input:
        dims = self.whole.dims
        sizes = (s if isinstance(s, int) else s.node.maybe_as_int() or str(s) for s in shape(node))
        dtype = str(value(node).dtype).removeprefix("torch.")
        return Input(self.tensor_name(node), dtype, tuple(dims.get(str(s), s) for s in sizes))

    def _size(self, graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> None:
        """Copy the computation of a size, from the sizes of this block's inputs."""
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


def cut(whole: FloatGraph, max_bytes: int, alone: Container[fx.Node] = ()) -> list[Block]:
    """Cut a graph into blocks so that the tensors between them are smallest in total.

    Args:
        whole: the graph.
        max_bytes: bytes of the weights of a block; a block of one call may have more.
        alone: calls that are a block each.

    Raises:
        CaptureError: a size depends on values.
    """
    calls = _calls(whole)
    weights = [inf if n in alone else weight_bytes(n) for n in calls]
    return _blocks(whole, calls, _cheapest(_live_bytes(calls), weights, max_bytes))


def cut_at(whole: FloatGraph, names: Sequence[str]) -> list[Block]:
    """Cut a graph into blocks that begin with the calls of these names, in their order.

    Raises:
        CaptureError: a size depends on values.
        LookupError: the first call has none of the names, or a name is that of no call behind the
            one before; the error has the name.
    """
    calls = _calls(whole)
    numbers = {name_of(n): i for i, n in enumerate(calls)}
    places = list[int]()
    for name in names:
        place = numbers.get(name, -1)
        if (place <= places[-1]) if places else place:
            raise LookupError(name)
        places.append(place)
    return _blocks(whole, calls, [*places, len(calls)])


def _calls(whole: FloatGraph) -> list[fx.Node]:
    return [n for n in whole.graph.nodes if n.op == "call_function" and not _is_size(n)]


def _blocks(whole: FloatGraph, calls: Sequence[fx.Node], places: Sequence[int]) -> list[Block]:
    """Return the blocks between these places."""
    blocks = [Block(whole, calls[i:j]) for i, j in itertools.pairwise(places)]
    ends = dict.fromkeys(output_nodes(whole.graph))
    for index, block in enumerate(blocks):
        later = {n for other in blocks[index + 1 :] for n in other.inputs}
        block.outputs = tuple(n for n in block.calls if n in later or n in ends)
    return blocks


def weight_bytes(node: fx.Node) -> int:
    """Return the bytes of the weights and constants that a call reads, in float32."""
    stored = (value(n) for n in node.all_input_nodes if n.op == "get_attr")
    return sum(4 * t.numel() for t in stored)


def _live_bytes(calls: Sequence[fx.Node]) -> list[int]:
    """Return the bytes that are live behind call 0, 1, ..."""
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
    """Return the bytes of the node's tensor, a large number for a tuple, which no cut may cross.

    Integers, so that sums and differences are exact.
    """
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor):
        return _NEVER
    return prod(hint(size) for size in tensor.shape) * tensor.element_size()


def _cheapest(live: Sequence[float], weights: Sequence[float], max_bytes: int) -> list[int]:
    """Return where blocks begin and end, by dynamic programming over the last cut."""
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(weights) + 1):
        cheapest, block_bytes = (inf, 0), 0.0
        for start in range(end - 1, -1, -1):
            block_bytes += weights[start]
            if block_bytes > max_bytes and start < end - 1:
                break
            cost = best[start][0] + live[end - 1]
            if cost < cheapest[0]:
                cheapest = cost, start
        best.append(cheapest)
    places = [len(weights)]
    while places[-1]:
        places.append(best[places[-1]][1])
    return places[::-1]


def _is_size(node: fx.Node) -> bool:
    """Return whether the node is a number computed from sizes."""
    return node.op == "call_function" and isinstance(value(node), torch.SymInt | int | float | bool)


def _roots(node: fx.Node) -> list[fx.Node]:
    """Return the sizes of tensors that a size is computed from."""
    if node.target is aten.sym_size.int:
        return [node]
    return [root for source in node.all_input_nodes for root in _roots(source)]
