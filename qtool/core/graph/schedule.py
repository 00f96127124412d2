"""The order in which nodes are computed if the computation stops at some of them.

A stop comes as late as possible, so that as much as possible is computed before it. Stops that do
not depend on each other come together, as a wave: they may be processed in parallel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from heapq import heapify, heappop, heappush

Reads = Mapping[int, Collection[int]]
"""Node -> the nodes whose values it reads."""


def execution_order(reads: Reads, stops: Set[int]) -> list[int]:
    """Return the nodes in a topological order in which stops come last of those that are ready.

    Args:
        reads: node to compute -> the nodes that it reads; those that are no keys are known from the
            beginning.
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


def schedule(reads: Reads, stops: Reads) -> list[list[int]]:
    """Return waves of stops, and each other node alone, in a topological order.

    Args:
        reads: as of `execution_order`.
        stops: stop -> the nodes it looks at, besides those it reads. In `execution_order` they come
            before the stop, and their values do not change until then.
    """
    order = execution_order(reads, stops.keys())
    levels: dict[int, int] = {}  # number of stops, one after the other, up to this node
    for i in order:
        sources = (*reads[i], *stops.get(i, ()))
        levels[i] = max((levels.get(j, 0) for j in sources), default=0) + (i in stops)
    waves: list[list[int]] = []
    last_level = 0
    for i in sorted(order, key=lambda i: (levels[i], i not in stops)):  # the sort is stable
        if i in stops and levels[i] == last_level:
            waves[-1].append(i)
        else:
            waves.append([i])
        last_level = levels[i] if i in stops else 0
    return waves
