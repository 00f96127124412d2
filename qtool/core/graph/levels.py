"""Levels of a graph: two networks run side by side, and stop at layers to solve them.

A layer to stop at is a level above all that it reads or looks at. At each level all batches run up
to the inputs of its layers, and the float network one node further, to their results; then the
layers are solved together, since none changes what another one sees.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any

import torch

from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.graph.node_calls import Values
from qtool.core.progress import track

Reads = Mapping[int, Collection[int]]
"""Node -> the nodes whose values it reads or looks at."""
Visit = Callable[[list[int], Sequence[Sequence[Values]]], Mapping[int, torch.Tensor]]
"""See `run_by_levels`."""


def execution_order(reads: Reads, stops: Set[int]) -> list[int]:
    """Return the nodes in a topological order in which stops come last of those that are ready.

    Args:
        reads: inputs of each node to compute; other nodes in it are known from the beginning.
        stops: nodes to stop at.
    """
    waiting = {i: len({r for r in read if r in reads}) for i, read in reads.items()}
    users: dict[int, list[int]] = {i: [] for i in reads}
    for i, read in reads.items():
        for source in {r for r in read if r in reads}:
            users[source].append(i)
    ready = [(i in stops, i) for i, count in waiting.items() if not count]
    heapify(ready)
    order = []
    while ready:
        _, i = heappop(ready)
        order.append(i)
        for user in users[i]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (user in stops, user))
    return order


@dataclass(frozen=True)
class Levels:
    """The levels of a graph; numbers are those of nodes in the executor.

    Attributes:
        executor: executor of the quantized network; without its points it is the float one.
        stops: number of a stop -> the nodes it looks at, besides those it reads. In
            `execution_order` they come before it.
        of_node: number -> level, of computed nodes that depend on an input.
        fixed: numbers of computed nodes that are equal for all batches.
    """

    executor: Executor
    stops: Reads
    of_node: Mapping[int, int]
    fixed: tuple[int, ...]

    @classmethod
    def of(cls, executor: Executor, stops: Reads) -> Levels:
        """Return the levels of a graph with these stops."""
        reads, constant = executor.reads, set(executor.constants)
        fixed, levels = list[int](), dict[int, int]()
        for i in execution_order(reads, stops.keys()):
            if i not in stops and set(reads[i]) <= constant:
                constant.add(i)
                fixed.append(i)
                continue
            sources = (*reads[i], *stops.get(i, ()))
            levels[i] = max((levels.get(j, 0) for j in sources), default=0) + (i in stops)
        return cls(executor, stops, levels, tuple(fixed))

    @property
    def top(self) -> int:
        """The highest level; the lowest is 0."""
        return max(self.of_node.values(), default=0)

    @cached_property
    def constants(self) -> frozenset[int]:
        """Numbers of values that are equal for all batches."""
        return frozenset((*self.executor.constants, *self.fixed))

    @cached_property
    def _nodes(self) -> Mapping[int, list[int]]:
        """Level -> its nodes."""
        nodes: dict[int, list[int]] = {level: [] for level in range(self.top + 2)}
        for i, level in sorted(self.of_node.items()):
            nodes[level].append(i)
        return nodes

    def stops_of(self, level: int) -> list[int]:
        """Return the stops of a level."""
        return [i for i in self._nodes[level] if i in self.stops]

    def alive(self, level: int, outputs: Iterable[int] = ()) -> set[int]:
        """Return the values that are needed after a level, with the outputs that are known then."""
        later = [i for i, each in self.of_node.items() if each > level]
        needed = {j for i in later for j in (*self.executor.calls[i].reads, *self.stops.get(i, ()))}
        known = {*self.executor.inputs, *(i for i, each in self.of_node.items() if each <= level)}
        return (needed | set(outputs)) & known

    def start(self, points: Set[str], changed: Mapping[int, Any] | None = None) -> Values:
        """Return the values of a network with the constants and what follows of them.

        changed: number -> other value of a constant.
        """
        values = self.executor.initial_values(changed or {})
        self.executor.advance(values, self.fixed, points, set(self.constants))
        return values

    def advance(self, level: int, exact: Values, coded: Values, alive: Set[int]) -> None:
        """Compute a level in both networks, and the float results of the next level's stops.

        Args:
            level: all below it are computed.
            exact, coded: values in the float and the quantized network, which change in place.
            alive: see `alive`.
        """
        run, steps, stops = self.executor, self._nodes[level], self.stops_of(level + 1)
        kept = {*alive, *self.constants}
        early = [i for i in steps if exact[i] is not None]  # stops, computed with the last level
        run.advance(exact, [i for i in steps if exact[i] is None], frozenset(), kept)
        run.advance(coded, steps, run.points, kept)
        run.advance(exact, stops, frozenset(), kept | set(stops))
        for read in {j for i in early for j in (i, *run.calls[i].reads)} - kept:
            exact[read] = None


def with_known(values: Values, known: Mapping[int, Any]) -> Values:
    """Return a copy of the values with some others, by number."""
    copied = list(values)
    for number, value in known.items():
        copied[number] = value
    return copied


@torch.no_grad()
def run_by_levels(executor: Executor, batches: Sequence[Batch], stops: Reads, visit: Visit) -> None:
    """Run the float and the quantized network level by level, all batches in memory.

    Args:
        executor: executor of the quantized network.
        batches: bound to the graph.
        stops: see `Levels`.
        visit: called with the stops of a level, when the float network has computed them and the
            quantized one has not, and with all values that are still needed:
            [network][batch][number of node]. It returns new values of constants by number, for
            the quantized network from there on.
    """
    levels = Levels.of(executor, stops)
    starts = [levels.start(points) for points in (frozenset[str](), executor.points)]
    networks = [[with_known(s, executor.inputs_of(b)) for b in batches] for s in starts]
    for level in track("layer by layer", range(levels.top + 1)):
        alive, chosen = levels.alive(level), levels.stops_of(level + 1)
        for exact, coded in zip(*networks, strict=True):
            levels.advance(level, exact, coded, alive)
        updates = visit(chosen, networks) if chosen else {}
        for number, value in updates.items():
            for row in networks[1]:
                row[number] = value.to(executor.device)
