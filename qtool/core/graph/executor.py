"""The one executor of graphs: node by node, with access to every value, points on or off.

Whole runs keep all values, so that a run with other points switched computes only what differs
(`again`); a stream keeps none that nobody reads any more (`stream`), for data of any size and
networks of any depth; a part begins anywhere, from values at hand (`part`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.schedule import execution_order, schedule
from qtool.core.progress import track

Values = list[Any]
POINT_COST, ELEMENT_COST = 20, 6  # of one element, in MACs of a convolution: as measured, about


@dataclass(frozen=True, eq=False)
class _Call:
    """One node: how to compute it from the values of others, and what that costs a sample.

    Attributes:
        index: position of the node in the graph.
        arguments: positional arguments, None at the positions in `operands`.
        operands: (position, index of the node whose value goes there).
        nested: positions of lists that hold values.
        keywords: keyword arguments, with references to values.
        function: what is called: the operator or the submodule.
        point: name of the quantization point; None for other nodes.
        users: indices of the nodes that read the result.
        reads: indices of the nodes that it reads.
        cost: of one sample, in MACs.
        elements: of the result for one sample.
    """

    index: int
    arguments: tuple[Any, ...]
    operands: tuple[tuple[int, int], ...]
    nested: tuple[int, ...]
    keywords: dict[str, Any]
    function: Callable[..., Any]
    point: str | None
    users: tuple[int, ...]
    reads: tuple[int, ...]
    cost: int
    elements: int


class Executor:
    """A graph as steps whose values can be had.

    A point is a submodule with an attribute `point`, its name, that rounds what it is called with;
    `points` names those that are on, the others are the identity: none is the float network, all
    are the quantized one, and some a partly quantized one. All runs are without gradients.
    """

    def __init__(
        self, graph: G.FloatGraph, macs: Mapping[str, int] | None = None, single_run: bool = False
    ) -> None:
        """
        Args:
            graph: with or without points in its module.
            macs: multiply-accumulates of nodes, by name, for `cost`.
            once: it runs once with points, so that rounded weights are not kept.
        """
        module = graph.module
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
            i: _step(module, n, index, macs or {})
            for i, n in enumerate(nodes)
            if n.op.startswith("call")
        }
        self.points = frozenset(s.point for s in self.calls.values() if s.point is not None)
        self.quantized_constants = {  # constants behind their points, rounded once
            i: s.function(self.constants[s.operands[0][1]])
            for i, s in self.calls.items()
            if s.point is not None and s.operands[0][1] in self.constants and not single_run
        }
        self.size = len(nodes)

    def name_of(self, number: int) -> str:
        """The tensor that a value is, with a point or without."""
        name = next(name for name, i in self.indices.items() if i == number)
        step = self.calls.get(number)
        return name if step is None or step.point is None else self.name_of(step.operands[0][1])

    @torch.no_grad()
    def run(self, batch: Batch, points: Set[str]) -> Values:
        """All values of a run."""
        values = self._begin(batch)
        for step in self.calls.values():
            values[step.index] = self._compute(step, values, points)
        return values

    @torch.no_grad()
    def stream(
        self, batch: Batch, points: Set[str], wanted: Iterable[str]
    ) -> Iterator[tuple[str, Any]]:
        """The values of these nodes, as they are computed; the others are dropped after use.

        Args:
            wanted: names of nodes, "conv1" for a result before its point, "conv1.quant" behind it.

        Yields:
            (name, value) in order of computation, inputs first.
        """
        names = {self.indices[name]: name for name in wanted}
        last, values = self._last_uses(max(names, default=-1)), self._begin(batch)
        for i in self.inputs + list(self.constants):
            if i in names:
                yield names[i], values[i]
        for i, step in self.calls.items():
            if i not in last:
                continue
            values[i] = self._compute(step, values, points)
            if i in names:
                yield names[i], values[i]
            for used in step.reads:
                if last.get(used) == i:
                    values[used] = None
            if last[i] == i:
                values[i] = None

    def output_values(self, batch: Batch, points: Set[str]) -> list[Any]:
        """The outputs of a run, in order, with weights that were rounded once for all runs."""
        found = dict(self.stream(batch, points, self.output_names))
        return [found[name] for name in self.output_names]

    @torch.no_grad()
    def run_side_by_side(
        self,
        batches: Sequence[Batch],
        networks: Sequence[Set[str]],
        stops: Mapping[str, Collection[int]],
        visit: Callable[[list[str], Sequence[Sequence[Values]]], Mapping[str, torch.Tensor]],
    ) -> None:
        """Computes node by node, each for all batches and in several networks, the first one first.

        Args:
            networks: the points that are on in each.
            stops: the nodes to stop at, and the numbers of what is looked at there; see `waves_of`.
            visit: called with the names of such nodes, of which none changes what is seen at
                another, when the first network has their values and before the others have; it sees
                all values that are still needed, [network][batch][number of node], and gives other
                values for constants, by their points or, where they have none, by their names: for
                the other networks, from there on.
        """
        waves = schedule(self._reads, {self.indices[name]: seen for name, seen in stops.items()})
        order = [i for wave in waves for i in wave]
        last = {i: i for i in order} | {used: i for i in order for used in self.calls[i].reads}
        values = [[self._begin(batch) for batch in batches] for _ in networks]
        names = {self.indices[name]: name for name in stops}
        for wave in track("node by node", waves):
            for k, points in enumerate(networks):
                if k == 1 and wave[0] in names:
                    for point, value in visit([names[i] for i in wave], values).items():
                        self._replace(point, value, values[1:])
                for i in wave:
                    for row in values[k]:
                        row[i] = self._compute(self.calls[i], row, points)
            used = {j for i in wave for j in (*self.calls[i].reads, i)} - self.constants.keys()
            for row in (row for network in values for row in network):
                for j in used:
                    if last[j] in wave:
                        row[j] = None

    def execution_order(self, stops: Set[str]) -> list[int]:
        """The steps in the order in which `lockstep` knows them at its stops."""
        return execution_order(self._reads, {self.indices[name] for name in stops})

    @property
    def _reads(self) -> Mapping[int, Collection[int]]:
        return {i: step.reads for i, step in self.calls.items()}

    @torch.no_grad()
    def advance(
        self, values: Values, numbers: Iterable[int], points: Set[str], kept: Set[int]
    ) -> None:
        """Computes these steps in place, in order; what they read is known by then.

        Args:
            kept: what is asked for afterwards; the rest is dropped behind the last that reads it.
        """
        order = list(numbers)
        last = {read: i for i in order for read in (i, *self.calls[i].reads)}
        for i in order:
            values[i] = self._compute(self.calls[i], values, points)
            for read in (i, *self.calls[i].reads):
                if last[read] == i and read not in kept:
                    values[read] = None

    def initial_values(self, known: Mapping[int, Any]) -> Values:
        """Values by their numbers and the constants in their places; nothing else."""
        values: Values = [None] * self.size
        for i, value in (*self.constants.items(), *known.items()):
            values[i] = value
        return values

    def live_elements(self) -> int:
        """The most elements of a sample that have to be held at once, in a run node by node."""
        last = self._last_uses(self.size)
        total = most = 0
        ends: dict[int, list[int]] = {}
        for i, j in last.items():
            ends.setdefault(j, []).append(i)
        for i, step in self.calls.items():
            total += step.elements
            most = max(most, total)
            total -= sum(self.calls[j].elements for j in ends.get(i, ()) if j in self.calls)
        return most

    def compute(
        self, name: str, values: Values, points: Set[str], given: Mapping[str, Any] | None = None
    ) -> Any:
        """The value of one node, those that it reads being known, or given by name."""
        known = list(values)
        for other, value in (given or {}).items():
            known[self.indices[other]] = value
        return self._compute(self.calls[self.indices[name]], known, points)

    def _replace(self, point: str, value: torch.Tensor, values: Sequence[Sequence[Values]]) -> None:
        """Another value behind the point of a constant, or of one without a point by its name;
        also where it stands already."""
        behind = (
            i for i, s in self.calls.items() if s.point == point and i in self.quantized_constants
        )
        found = next(behind, None)
        if found is None:
            found = self.indices[point]
        else:
            self.quantized_constants[found] = value
        for row in (row for network in values for row in network):
            row[found] = value

    @torch.no_grad()
    def compute_from(self, values: Mapping[str, Any], points: Set[str], wanted: str) -> Any:
        """The value of one node, from those of others: only what lies between is computed.

        Args:
            values: name -> value; together they have to cut `wanted` off from the inputs.

        Raises:
            KeyError: they do not; names the input that would be needed.
        """
        known: Values = [None] * self.size
        given = {self.indices[name] for name in values}
        for name, value in values.items():
            known[self.indices[name]] = value
        for i in self._between(given, self.indices[wanted]):
            known[i] = (
                self.constants[i]
                if i in self.constants
                else self._compute(self.calls[i], known, points)
            )
        return known[self.indices[wanted]]

    def _begin(self, batch: Batch) -> Values:
        """Inputs and constants in their places."""
        values: Values = [None] * self.size
        for i, constant in self.constants.items():
            values[i] = constant
        for i, leaf in zip(self.inputs, self.graph.leaves_of(batch), strict=True):
            values[i] = leaf
        return values

    def _last_uses(self, end: int) -> dict[int, int]:
        """Step -> the last step up to `end` that reads it, itself where none does; what nothing
        up to `end` needs is not in it."""
        last: dict[int, int] = {}
        for i, step in self.calls.items():
            if i <= end:
                last[i] = i
                last.update(dict.fromkeys(step.reads, i))
        return {i: j for i, j in last.items() if i not in self.constants}

    def _between(self, given: Set[int], end: int) -> list[int]:
        """What has to be computed for `end`, in order."""
        found, open_ = set[int](), [end]
        while open_:
            i = open_.pop()
            if i in given or i in found:
                continue
            if i not in self.calls and i not in self.constants:
                name = next(n for n, k in self.indices.items() if k == i)
                raise KeyError(name)
            found.add(i)
            open_ += self.calls[i].reads if i in self.calls else ()
        return sorted(found)

    @torch.no_grad()
    def rerun_changed(self, values: Values, changed: Set[str], points: Set[str]) -> dict[int, Any]:
        """The values that differ from an earlier run, now that points are switched.

        Args:
            values: of that run. changed: points whose state is another now. points: those on now.
        """
        dirty = {i for i, s in self.calls.items() if s.point in changed}
        found, new = list(values), {}
        for i, step in self.calls.items():
            if i in dirty:
                found[i] = new[i] = self._compute(step, found, points)
                dirty.update(step.users)
        return new

    def cost(self, changed: Set[str] | None = None) -> int:
        """About what `again` costs for one sample, in MACs; None: a whole run."""
        if changed is None:
            return sum(s.cost for s in self.calls.values() if s.point is None)
        dirty = {i for i, s in self.calls.items() if s.point in changed}
        total = 0
        for i, step in self.calls.items():
            if i in dirty:
                total += step.cost
                dirty.update(step.users)
        return total

    def _compute(self, step: _Call, values: Values, points: Set[str]) -> Any:
        if step.point is not None:
            if step.point not in points:
                return values[step.operands[0][1]]
            if step.index in self.quantized_constants:
                return self.quantized_constants[step.index]
        arguments = list(step.arguments)
        for place, index in step.operands:
            arguments[place] = values[index]
        for place in step.nested:
            arguments[place] = _fill(arguments[place], values)
        if step.keywords:
            return step.function(*arguments, **_fill(step.keywords, values))
        return step.function(*arguments)


@dataclass(frozen=True)
class _Ref:
    """Stands for the value of a node."""

    index: int


def _fill(argument: Any, values: Values) -> Any:
    """Values in place of references, in lists and dicts too."""
    if isinstance(argument, _Ref):
        return values[argument.index]
    if isinstance(argument, list | tuple):
        return [_fill(a, values) for a in argument]
    if isinstance(argument, dict):
        return {k: _fill(a, values) for k, a in argument.items()}
    return argument


def _step(
    module: fx.GraphModule, node: fx.Node, index: dict[fx.Node, int], macs: Mapping[str, int]
) -> _Call:
    args: Any = _refer(node.args, index)
    places = tuple((i, a.index) for i, a in enumerate(args) if isinstance(a, _Ref))
    nested = tuple(i for i, a in enumerate(args) if isinstance(a, list | tuple))
    plain = tuple(None if isinstance(a, _Ref) else a for a in args)
    called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    point, cost = None, _elements(node) * ELEMENT_COST + macs.get(G.name_of(node), 0)
    if called is not None and hasattr(called, "point"):
        source = node.args[0]
        constant = isinstance(source, fx.Node) and source.op == "get_attr"
        point, cost = str(called.point), 0 if constant else _elements(node) * POINT_COST
    function: Any = called if called is not None else node.target
    users = tuple(index[u] for u in node.users if u.op != "output")
    keywords: Any = _refer(node.kwargs, index)
    reads = tuple(index[n] for n in node.all_input_nodes)
    places_of = (index[node], plain, places, nested)
    return _Call(*places_of, keywords, function, point, users, reads, cost, _elements(node))


def _refer(arguments: Any, index: dict[fx.Node, int]) -> Any:
    """Arguments with references in place of nodes."""
    return pytree.tree_map_only(fx.Node, lambda n: _Ref(index[n]), arguments)


def _elements(node: fx.Node) -> int:
    """Elements of one sample at the captured sizes."""
    value = G.value(node)
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return 0
    return math.prod(G.hint(size) for size in value.shape[1:])
