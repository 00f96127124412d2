"""One call that all ranks make: they begin together, agree, exchange, and end together."""

from __future__ import annotations

import json
import platform
import signal
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from qtool.core.atomic import scratch_folder
from qtool.core.errors import QtoolError, RanksError, describe
from qtool.core.versions import version_of
from qtool.distributed.heartbeat import Failure
from qtool.distributed.messages import Channel, OtherRankError
from qtool.distributed.process_group import find_group

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PACKAGES = ("qtool", "torch", "onnx", "onnxruntime")


class RankDone(BaseException):
    """What is left of a command is rank 0's; ends it on the others, on their way out of it."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among those that make the same call; alone it is rank 0 of 1.

    led: whether rank 0 alone ends what they do; see `lead`.
    """

    rank: int = 0
    size: int = 1
    rank_zero_finishes: bool = False
    channel: Channel | None = None

    @property
    def is_distributed(self) -> bool:
        return self.size > 1

    def check(self) -> None:
        """Raises RanksError where a rank has failed. Costs nothing; call it in every long loop."""
        if self.channel is not None:
            self.channel.check()

    def all_gather(self, text: str, timeout_message: str = "") -> list[str]:
        """What every rank says, in their order; all have said it when this returns.

        Args:
            late: what is wrong where a rank does not within the group's wait; "{}" is the rank.
        """
        if self.channel is None:
            return [text]
        self.channel.talks += 1
        key = f"tells/{self.channel.talks}"
        self.channel.set(f"{key}/{self.rank}", text)
        return [
            self.channel.wait_for(f"{key}/{r}", timeout_message.format(r)) for r in range(self.size)
        ]

    def check_equal(self, what: str, said: str) -> None:
        """Raises RanksError, on every rank alike, where ranks do not say the same."""
        told = self.all_gather(said)
        odd = [r for r, text in enumerate(told) if text != told[0]]
        if odd:
            raise RanksError(
                f"rank {odd[0]} of {self.size} has {what} than rank 0 ({_short(told[odd[0]])} and "
                f"{_short(told[0])}); give the same to all"
            )

    def reduce(
        self,
        own: T,
        pack: Callable[[T], bytes],
        read: Callable[[bytes], T],
        add: Callable[[T, T], T],
    ) -> T | None:
        """The values of all ranks as one, pair by pair; on rank 0, None on the others."""
        step = 1
        while step < self.size:
            assert self.channel is not None
            if self.rank % (2 * step):
                self.channel.send(pack(own), self.rank - step)
                return None
            if self.rank + step < self.size:
                own = add(own, read(self.channel.receive(self.rank + step)))
            step *= 2
        return own

    def gather(self, own: bytes, to: int) -> list[bytes]:
        """The bytes of all ranks in their order, on one of them; nothing on the others."""
        if self.channel is None:
            return [own]
        if self.rank != to:
            self.channel.send(own, to)
            return []
        return [own if r == to else self.channel.receive(r) for r in range(self.size)]

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """The bytes that one rank has, to all."""
        if self.channel is None:
            assert data is not None
            return data
        size = int(self.all_gather("" if data is None else str(len(data)))[source])
        if not size:
            return b""
        with self.channel.translate_errors():
            return self.channel.group.broadcast(data if self.rank == source else None, size, source)

    def continue_on_rank_zero(self) -> None:
        """From here on a command is rank 0's alone, which has everything. In a person's own program
        all go on."""
        if self.rank_zero_finishes and self.rank:
            raise RankDone


_ACTIVE: ContextVar[Ranks | None] = ContextVar("active", default=None)
_SINGLE = Ranks()
_SHARES_STEPS: ContextVar[bool] = ContextVar("solving", default=False)
_session_counts: dict[str, int] = defaultdict(
    int
)  # sessions so far, by group: the same on all ranks


def current() -> Ranks:
    """The ranks that work together now."""
    return _ACTIVE.get() or _SINGLE


@contextmanager
def share_steps() -> Iterator[None]:
    """All ranks make the same conversion in this context, and may share its steps."""
    token = _SHARES_STEPS.set(True)
    try:
        yield
    finally:
        _SHARES_STEPS.reset(token)


def shares_steps() -> bool:
    """Whether other ranks are in the same step, and may wait for what this one makes of it."""
    return _SHARES_STEPS.get() and current().is_distributed


def step_ranks(mark: Callable[[], str]) -> Ranks:
    """The ranks that share a step of what they solve; this one alone where they do not.

    Args:
        mark: tells what the step begins with. Where it differs, since other processors give other
            last bits, each rank goes on for itself, to the end.
    """
    if not shares_steps():
        return _SINGLE
    ranks = current()
    if len(set(ranks.all_gather(mark()))) > 1:
        _SHARES_STEPS.set(False)
        return _SINGLE
    return ranks


def collective(call: Callable[P, R]) -> Callable[P, R]:
    """The function as a call that all ranks of the process group make."""

    @wraps(call)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        with session(call.__name__):
            return call(*args, **kwargs)

    return made


@contextmanager
def session(name: str, rank_zero_finishes: bool = False) -> Iterator[Ranks]:
    """All ranks of the group that there is, at the same call; inside of another one, part of that.

    Whatever ends it on one rank ends it on all, in bounded time.

    Args:
        led: see `Ranks.lead`.

    Raises:
        RanksError: a rank does not make this call, or with other versions; it failed, or is gone.
    """
    if _ACTIVE.get() is not None or (group := find_group()) is None:
        yield current()
        return
    _session_counts[group.name] += 1
    try:
        wire = Channel(group, _session_counts[group.name])
        wire.watch.start()
    except RuntimeError as error:
        raise RanksError(
            f"the process group cannot be used any more ({describe(error)})"
        ) from error
    ranks = Ranks(group.rank, group.size, rank_zero_finishes, wire)
    token = _ACTIVE.set(ranks)
    try:
        with _end_all_ranks(ranks), scratch_folder() as life:
            _check_call(ranks, name, life)
            yield ranks
            wire.watch.leave()
    finally:
        _ACTIVE.reset(token)
        wire.watch.stop()


@contextmanager
def _end_all_ranks(ranks: Ranks) -> Iterator[None]:
    """What ends this rank ends the others, with the reason."""
    try:
        yield
    except BaseException as error:
        assert ranks.channel is not None
        watch = ranks.channel.watch
        text = f"rank {ranks.rank} of {ranks.size} failed: {_message(error)}"
        counts = watch.failure or watch.fail(Failure(text, _exit_code(error), own=True))
        if ranks.rank_zero_finishes and not counts.own:
            raise OtherRankError(counts) from error  # which speaks for all
        raise


def _message(error: BaseException) -> str:
    ours = isinstance(error, QtoolError) or hasattr(error, "exit_code")
    return str(error) if ours else describe(error)


def _exit_code(error: BaseException) -> int:
    """The exit code of a command that ends so."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(getattr(error, "number", signal.SIGINT))
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", None)
    return code if isinstance(code, int) else 2 if isinstance(error, QtoolError | OSError) else 1


def _check_call(ranks: Ranks, name: str, life: Path) -> None:
    """All are here, at the same call with the same packages."""
    assert ranks.channel is not None
    versions = {package: version_of(package) for package in _PACKAGES}
    late = (
        f"rank {{}} of {ranks.size} did not call {name} within {ranks.channel.group.wait:g} s; "
        "call it on every rank, or in `with qtool.within(None)` to use one process"
    )
    told = ranks.all_gather(json.dumps([name, versions, [_machine_id(), str(life)]]), late)
    calls = [json.loads(text) for text in told]
    places = ((rank, place) for rank, (*_, place) in enumerate(calls))
    ranks.channel.watch.watch({r: Path(at) for r, (where, at) in places if where == _machine_id()})
    for rank, (call, theirs, _) in enumerate(calls):
        if call != calls[0][0]:
            raise RanksError(f"rank {rank} of {ranks.size} called {call}, rank 0 {calls[0][0]}")
        for package, version in theirs.items():
            if version != calls[0][1][package]:
                raise RanksError(
                    f"rank {rank} of {ranks.size} has {package} {version}, rank 0 "
                    f"{calls[0][1][package]}; install the same version everywhere"
                )


def _machine_id() -> str:
    """A name that no other machine has."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()} {uuid.getnode()}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:12]}..."
