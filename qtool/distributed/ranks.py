"""The collectives of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

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
