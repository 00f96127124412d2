"""A session: one call that all ranks make, begin and end together."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

from qtool.core.errors import QtoolError, RanksError, describe
from qtool.core.remedies import Setup
from qtool.core.versions import version_of
from qtool.distributed.messages import Channel, Failure, OtherRankError
from qtool.distributed.process_group import find_group
from qtool.distributed.ranks import Ranks

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGES = ("qtool", "torch", "onnx", "onnxruntime")

_ACTIVE: ContextVar[Ranks | None] = ContextVar("active", default=None)
_SINGLE = Ranks()
_SHARES_STEPS: ContextVar[bool] = ContextVar("shares_steps", default=False)
_session_counts: dict[str, int] = defaultdict(int)  # by group: equal on all ranks


def current() -> Ranks:
    """Return the ranks of the running session; rank 0 of 1 outside of one."""
    return _ACTIVE.get() or _SINGLE


@contextmanager
def share_steps() -> Iterator[None]:
    """Mark that all ranks make the same conversion in this context, so that they may share its
    steps."""
    token = _SHARES_STEPS.set(True)
    try:
        yield
    finally:
        _SHARES_STEPS.reset(token)


def shares_steps() -> bool:
    """Return whether other ranks are in the same step and may wait for this one's results."""
    return _SHARES_STEPS.get() and current().is_distributed


def step_ranks(state_hash: Callable[[], str]) -> Ranks:
    """Return the ranks that share a step; this rank alone if none do.

    Args:
        state_hash: returns a hash of the state that the step begins with. If it differs between
            ranks (other processors give other last bits), each computes all further steps itself.
    """
    if not shares_steps():
        return _SINGLE
    ranks = current()
    if len(set(ranks.all_gather(state_hash()))) > 1:
        _SHARES_STEPS.set(False)
        return _SINGLE
    return ranks


def collective(call: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that all ranks of the process group call together."""

    @wraps(call)
    def in_session(*args: P.args, **kwargs: P.kwargs) -> R:
        with session(call.__name__):
            return call(*args, **kwargs)

    return in_session


@contextmanager
def session(name: str, rank_zero_finishes: bool = False) -> Iterator[Ranks]:
    """Run the same call on all ranks of the process group; a session inside another is part of it.

    Whatever ends it on one rank ends it on all, in bounded time.

    Args:
        name: name of the call, equal on all ranks.
        rank_zero_finishes: see `Ranks.continue_on_rank_zero`.

    Raises:
        RanksError: a rank does not make this call, has other package versions, failed or died.
    """
    if _ACTIVE.get() is not None or (group := find_group()) is None:
        yield current()
        return
    _session_counts[group.name] += 1
    try:
        channel = Channel(group, _session_counts[group.name])
        channel.heartbeat.start()
    except RuntimeError as error:
        raise RanksError(f"the process group is no longer usable ({describe(error)})") from error
    ranks = Ranks(group.rank, group.size, rank_zero_finishes, channel)
    token = _ACTIVE.set(ranks)
    try:
        with _end_all_ranks(ranks, channel):
            _check_call(ranks, channel, name)
            yield ranks
            channel.heartbeat.leave()
    finally:
        _ACTIVE.reset(token)
        channel.heartbeat.stop()


@contextmanager
def _end_all_ranks(ranks: Ranks, channel: Channel) -> Iterator[None]:
    """End the other ranks if this one ends with an error, and give them the reason."""
    try:
        yield
    except BaseException as error:
        heartbeat = channel.heartbeat
        text = f"rank {ranks.rank} of {ranks.size} failed: {_message(error)}"
        first = heartbeat.failure or heartbeat.fail(Failure(text, _exit_code(error), own=True))
        if ranks.rank_zero_finishes and not first.own:
            raise OtherRankError(first) from error  # the failed rank reports it for all
        raise


def _message(error: BaseException) -> str:
    is_ours = isinstance(error, QtoolError) or hasattr(error, "exit_code")
    return str(error) if is_ours else describe(error)


def _exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(getattr(error, "number", signal.SIGINT))
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", None)
    return code if isinstance(code, int) else 2 if isinstance(error, QtoolError | OSError) else 1


def _check_call(ranks: Ranks, channel: Channel, name: str) -> None:
    """Wait until all ranks are at the same call with the same packages, and watch them then."""
    versions = {package: version_of(package) for package in _PACKAGES}
    timeout_message = (
        f"rank {{}} of {ranks.size} did not call {name} within {channel.group.wait:g} s; call it "
        "on every rank, or in `with qtool.use_process_group(None)` to use one process"
    )
    own = json.dumps([name, versions])
    calls = [json.loads(text) for text in ranks.all_gather(own, timeout_message)]
    channel.heartbeat.watch()
    first_call, first_versions = calls[0]
    for rank, (call, versions) in enumerate(calls):
        if call != first_call:
            raise RanksError(f"rank {rank} of {ranks.size} called {call}, rank 0 {first_call}")
        for package, version in versions.items():
            if version != first_versions[package]:
                raise RanksError(
                    f"rank {rank} of {ranks.size} has {package} {version}, rank 0 "
                    f"{first_versions[package]}",
                    Setup("install the same version everywhere"),
                )
