"""Heartbeats and failures, between several watchers in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import distributed as dist

from qtool.core.atomic import scratch_folder
from qtool.distributed.heartbeat import Failure, Heartbeat


@contextmanager
def watches(size: int, patience: float = 60) -> Iterator[list[Heartbeat]]:
    store = dist.HashStore()
    found = [Heartbeat(store, rank, size, patience) for rank in range(size)]
    for heartbeat in found:
        heartbeat.start()
    try:
        yield found
    finally:
        for heartbeat in found:
            heartbeat.stop()


def soon(found: Callable[[], object]) -> bool:
    end = time.monotonic() + 30
    while not found() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(found())


def test_the_first_failure_counts_on_all() -> None:
    with watches(3) as (zero, one, two):
        first = Failure("rank 1 failed", 7, own=True)
        assert one.fail(first) == first
        assert two.fail(Failure("rank 2 failed", own=True)) == Failure("rank 1 failed", 7)
        assert soon(lambda: zero.failure)
        assert zero.failure == Failure("rank 1 failed", 7)


def test_ranks_that_leave_are_not_missed() -> None:
    with watches(2, patience=1) as (zero, one):
        for heartbeat in (zero, one):
            heartbeat.watch({})
        one.leave()
        one.stop()
        zero.leave()  # returns, since the other one left
        time.sleep(2)
        assert zero.failure is None


def test_silence_is_noticed_after_a_while() -> None:
    with watches(3, patience=1) as (zero, one, two):
        for heartbeat in (zero, one, two):
            heartbeat.watch({})
        two.stop()
        assert soon(lambda: zero.failure and one.failure)
        assert zero.failure == Failure("rank 2 of 3 is gone: no sign of life for 1 s", own=True)
        assert one.failure == Failure("rank 2 of 3 is gone: no sign of life for 1 s")


def test_a_released_lock_is_a_dead_process(tmp_path: Path) -> None:
    with watches(2) as (zero, one):
        with scratch_folder() as life:
            zero.watch({1: life})
            time.sleep(1.5)
            assert zero.failure is None
        zero.watch({1: tmp_path})  # exists, and is not locked
        assert soon(lambda: one.failure)
        assert one.failure == Failure("rank 1 of 2 is gone: its process ended")


def test_a_removed_folder_shortens_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtool.distributed.heartbeat.REMOVED_TIMEOUT", 1)
    with watches(2) as (zero, one):
        with scratch_folder() as life:
            zero.watch({1: life})
        time.sleep(2)
        assert zero.failure is None  # its heartbeats continue
        zero.watch({1: tmp_path / "never there"})
        one.stop()
        time.sleep(2)
        assert zero.failure is None  # its lock is unknown
        with scratch_folder() as life:
            zero.watch({1: life})
        assert soon(lambda: zero.failure)
        assert zero.failure == Failure("rank 1 of 2 is gone: its process ended", own=True)
