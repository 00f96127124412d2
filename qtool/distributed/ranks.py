"""Ranks, and how work is divided: batch i is of rank i modulo their number, tasks go by cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from qtool.core.array_batches import whole_texts
from qtool.core.errors import RanksError
from qtool.core.remedies import Setup
from qtool.distributed.messages import Channel

T = TypeVar("T")


class RankDone(BaseException):
    """Ends a command on this rank: rank 0 does the rest alone."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among those that make the same call; rank 0 of 1 without a process group.

    Attributes:
        rank: number of this process.
        size: number of processes.
        rank_zero_finishes: rank 0 alone ends the command; see `continue_on_rank_zero`.
        channel: messages to the other ranks; None without any.
    """

    rank: int = 0
    size: int = 1
    rank_zero_finishes: bool = False
    channel: Channel | None = None

    @property
    def is_distributed(self) -> bool:
        return self.size > 1

    def check(self) -> None:
        """Raise RanksError if a rank has failed. It is free: call it in every long loop."""
        if self.channel is not None:
            self.channel.check()

    def all_gather(self, text: str, timeout_message: str = "") -> list[str]:
        """Return the texts of all ranks in their order; also a barrier.

        Args:
            text: text of this rank.
            timeout_message: raised as a RanksError if a rank does not send its text within the
                group's `wait` seconds; "{}" is replaced by its number.
        """
        if self.channel is None:
            return [text]
        self.channel.n_gathers += 1
        key = f"gathers/{self.channel.n_gathers}"
        self.channel.set(f"{key}/{self.rank}", text)
        return [
            self.channel.wait_for(f"{key}/{r}", timeout_message.format(r)) for r in range(self.size)
        ]

    def check_equal(self, what: str, text: str) -> None:
        """Raise RanksError on every rank if the ranks' texts differ.

        Args:
            what: what the rank has if its text differs from rank 0's, "a different model".
            text: text of this rank.
        """
        texts = self.all_gather(text)
        other = next((r for r, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            raise RanksError(
                f"rank {other} of {self.size} has {what} than rank 0 ({_short(texts[other])} "
                f"and {_short(texts[0])})",
                Setup("start all ranks with the same files and options"),
            )

    def reduce(
        self,
        own: T,
        pack: Callable[[T], bytes],
        unpack: Callable[[bytes], T],
        add: Callable[[T, T], T],
    ) -> T | None:
        """Return the values of all ranks added pair by pair, on rank 0; None on the others."""
        step = 1
        while step < self.size:
            assert self.channel is not None
            if self.rank % (2 * step):
                self.channel.send(pack(own), self.rank - step)
                return None
            if self.rank + step < self.size:
                own = add(own, unpack(self.channel.receive(self.rank + step)))
            step *= 2
        return own

    def gather(self, own: bytes, to: int) -> list[bytes]:
        """Return the bytes of all ranks in their order, on rank `to`; none on the others."""
        if self.channel is None:
            return [own]
        if self.rank != to:
            self.channel.send(own, to)
            return []
        return [own if r == to else self.channel.receive(r) for r in range(self.size)]

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """Return the bytes of rank `source` on all ranks; `data` of the others is not read."""
        if self.channel is None:
            assert data is not None
            return data
        size = int(self.all_gather("" if data is None else str(len(data)))[source])
        if not size:
            return b""
        with self.channel.translate_errors():
            return self.channel.group.broadcast(data if self.rank == source else None, size, source)

    def continue_on_rank_zero(self) -> None:
        """End a command on all ranks but 0, which has all results. Does nothing in a library call:
        there every rank returns."""
        if self.rank_zero_finishes and self.rank:
            raise RankDone


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:12]}..."


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
