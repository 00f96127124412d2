"""The share of a rank: of data that all ranks have batch i goes to rank i modulo their number; of
tasks that cost unlike much each gets about as much."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class DataShard:
    """Every `size`-th batch of the data, beginning with the `rank`-th.

    The batches stay as they are for one process, so that each forward gives the same bits. Data
    with a method `every(first, step)` is asked for those batches alone; of other data the rest is
    read, too, and dropped.
    """

    data: Iterable[Any]
    rank: int
    size: int

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.data, "every"):
            found: Iterator[Any] = self.data.every(self.rank, self.size)
            return found
        return itertools.islice(iter(self.data), self.rank, None, self.size)

    def __len__(self) -> int:
        """Number of batches; TypeError where the data does not know its own."""
        return len(range(self.rank, len(self.data), self.size))  # type: ignore[arg-type]  # see above


def data_name(data: Any) -> str:
    """What tells whether two ranks have the same data in the same order, before it is read: what
    the data says of itself (`name`), else its type and number of batches."""
    if hasattr(data, "name"):
        return str(data.name)
    try:
        return f"{type(data).__name__} of {len(data)} batches"
    except Exception:  # noqa: BLE001  # the user's code; what it is shows while it is read
        return type(data).__name__


def interleave(shares: Sequence[Sequence[T]]) -> list[T]:
    """What ranks have made of their shares, in the order of the data."""
    longest = max(map(len, shares), default=0)
    return [share[i] for i in range(longest) for share in shares if i < len(share)]


def balance(costs: Sequence[float], size: int) -> list[int]:
    """The rank of each task: the dearest first, each to the rank that has least so far."""
    found, loads = [0] * len(costs), [0.0] * size
    for task in sorted(range(len(costs)), key=lambda i: -costs[i]):
        found[task] = loads.index(min(loads))
        loads[found[task]] += costs[task]
    return found
