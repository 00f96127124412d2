"""In which order the steps of a graph are computed where some of them are stopped at.

Such a stop comes as late as can be, so that what else is known at it is as much as can be. Those of
which none changes what is seen at another come together, as a wave: they may be worked on at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from heapq import heapify, heappop, heappush

Reads = Mapping[int, Collection[int]]


def execution_order(reads: Reads, stops: Set[int]) -> list[int]:
    """The steps in an order of computation in which stops come when nothing else can.

    Args:
        reads: step -> what it reads; what is not a step is known from the beginning.
    """
    waiting = {i: len({r for r in read if r in reads}) for i, read in reads.items()}
    users: dict[int, list[int]] = {i: [] for i in reads}
    for i, read in reads.items():
        for used in {r for r in read if r in reads}:
            users[used].append(i)
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
    """The steps as waves of stops, and each other step by itself, in an order of computation.

    Args:
        stops: step -> what is looked at there, besides what it reads: of `order_of` what comes
            before the stop, and is as it is there.
    """
    order = execution_order(reads, stops.keys())
    levels: dict[int, int] = {}  # how many stops one after the other are before it
    for i in order:
        seen = (*reads[i], *stops.get(i, ()))
        levels[i] = max((levels.get(j, 0) for j in seen), default=0) + (i in stops)
    found: list[list[int]] = []
    last = 0
    for i in sorted(order, key=lambda i: (levels[i], i not in stops)):  # which is stable
        if i in stops and levels[i] == last:
            found[-1].append(i)
        else:
            found.append([i])
        last = levels[i] if i in stops else 0
    return found
