"""Executes a graph node by node, with access to every value and each quantization point on or off.

`run` returns all values, and `rerun_changed` computes only those that differ with other points
switched. `stream` drops values after their last use, for any amount of data and any depth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any

import torch

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.node_calls import Call, Values, call_of, fill


class Executor:
    """A graph as calls whose values can be read.

    A point is a submodule with an attribute `point`, its name, that quantizes and dequantizes its
    input. The argument `points` of a run names those that are on; the others return their input. No
    points: the float network, all: the quantized one. Only `run_with_gradients` computes gradients.

    Attributes:
        graph: the float graph, its module with or without points.
        indices: name of a node -> its index.
        inputs: indices of the placeholders.
        outputs: indices of the float outputs.
        output_names: names of all outputs, in order.
        constants: index -> parameter or buffer.
        calls: index -> call.
        points: names of all points.
        quantized_constants: index of a point -> the constant behind it, quantized once.
        size: number of nodes.
    """

    def __init__(
        self,
        graph: G.FloatGraph,
        macs: Mapping[str, int] | None = None,
        single_run: bool = False,
        device: torch.device = G.CPU,
    ) -> None:
        """
        Args:
            graph: its module may have points.
            macs: name of a node -> multiply-accumulates, for `cost`.
            single_run: does not keep quantized constants, for one run with points.
            device: where it runs, and where its values are.
        """
        module, self.device = G.on_device(graph.module, device), device
        nodes = list(module.graph.nodes)
        self.indices = {G.name_of(n): i for i, n in enumerate(nodes)}
        self.inputs = [i for i, n in enumerate(nodes) if n.op == "placeholder"]
        self.outputs = [nodes.index(n) for n in G.output_nodes(module.graph) if G.is_float(n)]
        self.output_names = [G.name_of(n) for n in G.output_nodes(module.graph)]
        self.graph = graph
        self.constants: dict[int, Any] = {
            i: G.tensor(module, n).detach() for i, n in enumerate(nodes) if n.op == "get_attr"
        }
        index = {n: i for i, n in enumerate(nodes)}
        self.calls = {
            i: call_of(module, n, index, macs or {})
            for i, n in enumerate(nodes)
            if n.op.startswith("call")
        }
        self.points = frozenset(c.point for c in self.calls.values() if c.point is not None)
        self.quantized_constants = {
            i: call.function(self.constants[call.operands[0][1]])
            for i, call in self.calls.items()
            if call.point is not None and call.operands[0][1] in self.constants and not single_run
        }
        self.size = len(nodes)

    def name_of(self, index: int) -> str:
        """Return the name of a node; of a point that of the node it quantizes."""
        name = next(name for name, i in self.indices.items() if i == index)
        call = self.calls.get(index)
        return name if call is None or call.point is None else self.name_of(call.operands[0][1])

    @torch.no_grad()
    def run(self, batch: Batch, points: Set[str]) -> Values:
        """Return all values of a run."""
        values = self._begin(batch)
        for call in self.calls.values():
            values[call.index] = self._compute(call, values, points)
        return values

    @torch.no_grad()
    def stream(
        self, batch: Batch, points: Set[str], wanted: Iterable[str]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the values of some nodes as they are computed; others are dropped after use.

        Args:
            batch: bound to the graph.
            points: those that are on.
            wanted: names of nodes: "conv1" for a result before its point, "conv1.quant" behind it.

        Yields:
            (name, value) in order of computation, inputs first.
        """
        names = {self.indices[name]: name for name in wanted}
        last, values = self._last_uses(max(names, default=-1)), self._begin(batch)
        for i in self.inputs + list(self.constants):
            if i in names:
                yield names[i], values[i]
        for i, call in self.calls.items():
            if i not in last:
                continue
            values[i] = self._compute(call, values, points)
            if i in names:
                yield names[i], values[i]
            for source in call.reads:
                if last.get(source) == i:
                    values[source] = None
            if last[i] == i:
                values[i] = None

    def output_values(self, batch: Batch, points: Set[str]) -> list[Any]:
        """Return the outputs of a run, in order."""
        outputs = dict(self.stream(batch, points, self.output_names))
        return [outputs[name] for name in self.output_names]

    @torch.no_grad()
    def advance(
        self, values: Values, indices: Iterable[int], points: Set[str], kept: Set[int]
    ) -> None:
        """Compute some nodes in place, in order.

        Args:
            values: list of values, with all that the nodes read.
            indices: positions of the nodes.
            points: those that are on.
            kept: indices of values needed afterwards; others are dropped after their last use.
        """
        order = list(indices)
        last = {read: i for i in order for read in (i, *self.calls[i].reads)}
        for i in order:
            values[i] = self._compute(self.calls[i], values, points)
            for read in (i, *self.calls[i].reads):
                if last[read] == i and read not in kept:
                    values[read] = None

    def initial_values(self, known: Mapping[int, Any]) -> Values:
        """Return values with the constants and `known`, by index, and None elsewhere."""
        values: Values = [None] * self.size
        for i, value in (*self.constants.items(), *known.items()):
            values[i] = value
        return values

    def value_bytes(self) -> int:
        """Return the bytes of all values of a run of one sample, of 4 bytes each."""
        return 4 * sum(call.elements for call in self.calls.values())

    def live_elements(self) -> int:
        """Return the largest number of elements per sample that are live at once in a run."""
        total = peak = 0
        dead_after: dict[int, list[int]] = {}
        for i, last in self._last_uses(self.size).items():
            dead_after.setdefault(last, []).append(i)
        for i, call in self.calls.items():
            total += call.elements
            peak = max(peak, total)
            total -= sum(self.calls[j].elements for j in dead_after.get(i, ()) if j in self.calls)
        return peak

    @property
    def reads(self) -> dict[int, Collection[int]]:
        """Number of a computed node -> the nodes whose values it reads."""
        return {i: call.reads for i, call in self.calls.items()}

    def inputs_of(self, batch: Batch) -> dict[int, Any]:
        """Return the inputs of a batch, bound to the graph, by number."""
        leaves = self.graph.leaves_of(batch.to(self.device))
        return dict(zip(self.inputs, leaves, strict=True))

    def _begin(self, batch: Batch) -> Values:
        """Return the values of a run before its first call."""
        return self.initial_values(self.inputs_of(batch))

    def _last_uses(self, end: int) -> dict[int, int]:
        """Return index -> index of the last call up to `end` that reads it; itself if none does."""
        last: dict[int, int] = {}
        for i, call in self.calls.items():
            if i <= end:
                last[i] = i
                last.update(dict.fromkeys(call.reads, i))
        return {i: j for i, j in last.items() if i not in self.constants}

    @torch.no_grad()
    def rerun_changed(self, values: Values, changed: Set[str], points: Set[str]) -> dict[int, Any]:
        """Return the values that differ from an earlier run, by index.

        Args:
            values: results of the earlier run.
            changed: points that are switched since.
            points: those that are on now.
        """
        dirty = {i for i, call in self.calls.items() if call.point in changed}
        current, new = list(values), {}
        for i, call in self.calls.items():
            if i in dirty:
                current[i] = new[i] = self._compute(call, current, points)
                dirty.update(call.users)
        return new

    @torch.enable_grad()
    def run_with_gradients(self, batch: Batch) -> Values:
        """Return all values of the float run; those behind points have gradients."""
        values = self._begin(batch)
        for i, call in self.calls.items():
            values[i] = self._compute(call, values, frozenset())
            if call.point is not None and values[i].is_floating_point():
                x = values[i]
                values[i] = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        return values

    @torch.no_grad()
    def rounding_error(self, index: int, values: Values) -> torch.Tensor:
        """Return what a point, by its index, changes in the values of a float run."""
        call = self.calls[index]
        error: torch.Tensor = self._compute(call, values, {call.point or ""}) - values[index]
        return error

    def cost(self, changed: Set[str] | None = None) -> int:
        """Estimate the cost of `rerun_changed` for one sample, in MACs; None: of a whole run."""
        if changed is None:
            return sum(call.cost for call in self.calls.values() if call.point is None)
        dirty = {i for i, call in self.calls.items() if call.point in changed}
        total = 0
        for i, call in self.calls.items():
            if i in dirty:
                total += call.cost
                dirty.update(call.users)
        return total

    def _compute(self, call: Call, values: Values, points: Set[str]) -> Any:
        if call.point is not None:
            if call.point not in points:
                return values[call.operands[0][1]]
            if call.index in self.quantized_constants:
                return self.quantized_constants[call.index]
        arguments = list(call.arguments)
        for position, index in call.operands:
            arguments[position] = values[index]
        for position in call.nested:
            arguments[position] = fill(arguments[position], values)
        if call.keywords:
            return call.function(*arguments, **fill(call.keywords, values))
        return call.function(*arguments)
