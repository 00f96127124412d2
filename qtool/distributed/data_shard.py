"""How work is divided: batch i goes to rank i modulo their number, tasks by their cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from qtool.core.array_batches import whole_texts

T = TypeVar("T")


@dataclass(frozen=True)
class DataShard:
    """Every `size`-th batch of the data, beginning with the `rank`-th.

    Batches are those of one process, so that each forward pass gives the same bits.

    Attributes:
        data: batches. If it has a method `every(first, step)`, only those batches are read;
            otherwise all are read, and those of other ranks dropped.
        rank: this rank.
        size: number of ranks.
    """

    data: Iterable[Any]
    rank: int
    size: int

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.data, "every"):
            batches: Iterator[Any] = self.data.every(self.rank, self.size)
            return batches
        return itertools.islice(iter(self.data), self.rank, None, self.size)

    @property
    def dynamic(self) -> Any:
        """The dynamic dimensions that the data declares; None without."""
        return getattr(self.data, "dynamic", None)

    def whole_texts(self) -> DataShard:
        """Return the shard of the whole texts, see `qtool.core.data.whole_texts`."""
        return replace(self, data=whole_texts(self.data))

    @property
    def contexts(self) -> Sequence[int] | None:
        """Those of `SlidingWindows` for the batches of this rank; None for other data."""
        every: Sequence[int] | None = getattr(self.data, "contexts", None)
        return None if every is None else every[self.rank :: self.size]

    def __len__(self) -> int:
        """Number of batches; TypeError if the data has no length."""
        return len(range(self.rank, len(self.data), self.size))  # type: ignore[arg-type]  # see above


def data_name(data: Any) -> str:
    """Return a text that is equal on two ranks with the same data in the same order.

    The data's own `name`, else its type and number of batches: nothing is read.
    """
    if hasattr(data, "name"):
        return str(data.name)
    try:
        return f"{type(data).__name__} of {len(data)} batches"
    except Exception:  # noqa: BLE001  # the user's code; its errors show when it is read
        return type(data).__name__


def interleave(shards: Sequence[Sequence[T]]) -> list[T]:
    """Return the results of all ranks in the order of the data."""
    longest = max(map(len, shards), default=0)
    return [shard[i] for i in range(longest) for shard in shards if i < len(shard)]


def balance(costs: Sequence[float], size: int) -> list[int]:
    """Return the rank of each task: the most expensive first, each to the least loaded rank."""
    ranks, loads = [0] * len(costs), [0.0] * size
    for task in sorted(range(len(costs)), key=lambda i: -costs[i]):
        ranks[task] = loads.index(min(loads))
        loads[ranks[task]] += costs[task]
    return ranks
