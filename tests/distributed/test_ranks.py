"""Ranks, the data of each, and their heartbeat."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist

from qtool.core.data.array_files import ArrayFiles
from qtool.distributed import DataShard, balance, current, data_name, interleave, session
from qtool.distributed.messages import Failure, Heartbeat
from tests.distributed.processes import PERIOD, run, values


class Counted:
    """Data that knows its length and remembers what was read of it."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[int]:
        return self.every(0, 1)

    def every(self, first: int, step: int) -> Iterator[int]:
        for i in range(first, 7, step):
            self.read.append(i)
            yield i


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_batch_goes_to_one_rank(size: int) -> None:
    shares = [DataShard(range(7), rank, size) for rank in range(size)]
    assert sorted(batch for share in shares for batch in share) == list(range(7))
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]


def test_data_is_asked_for_the_own_batches_alone() -> None:
    data = Counted()
    assert list(DataShard(data, 1, 3)) == [1, 4]
    assert data.read == [1, 4]


def test_data_without_a_length() -> None:
    share = DataShard(iter(range(7)), 2, 3)
    with pytest.raises(TypeError):
        len(share)
    assert list(share) == [2, 5]


def test_array_files(tmp_path: Path) -> None:
    for i, count in enumerate((5, 3, 4)):
        np.save(tmp_path / f"{i}.npy", np.full((count, 2), i, np.float32))
    whole = ArrayFiles(tmp_path, 2)
    batches = list(whole)
    for size in (2, 3, 9):
        shares = [list(DataShard(whole, rank, size)) for rank in range(size)]
        for i, batch in enumerate(batches):
            assert torch.equal(shares[i % size][i // size], batch)


def test_other_data_has_another_name(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((5, 2), np.float32))
    name = data_name(ArrayFiles(tmp_path, 2))
    assert name == data_name(ArrayFiles(tmp_path, 2))
    assert name != data_name(ArrayFiles(tmp_path, 3))
    np.save(tmp_path / "1.npy", np.zeros((5, 2), np.float32))
    assert name != data_name(ArrayFiles(tmp_path, 2))
    assert data_name([1, 2]) == "list of 2 batches"
    assert data_name(iter([1, 2])) == "list_iterator"


def test_tasks_are_dealt_by_what_they_cost() -> None:
    assert balance([1, 5, 2, 2], 2) == [1, 0, 1, 1]
    assert balance([1, 1, 1], 1) == [0, 0, 0]
    assert balance([3, 3], 4) == [0, 1]
    assert balance([], 2) == []


def test_shares_are_put_in_turn() -> None:
    data = list(range(7))
    assert interleave([data[r::3] for r in range(3)]) == data
    assert interleave([[1], [], [2, 3]]) == [1, 2, 3]


@pytest.fixture(autouse=True)
def period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtool.distributed.messages.PERIOD", PERIOD)


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
    with watches(2, patience=0.5) as (zero, one):
        for heartbeat in (zero, one):
            heartbeat.watch()
        one.leave()
        one.stop()
        zero.leave()  # returns, since the other one left
        time.sleep(0.8)
        assert zero.failure is None


def test_silence_is_noticed_after_a_while() -> None:
    with watches(3, patience=1) as (zero, one, two):
        for heartbeat in (zero, one, two):
            heartbeat.watch()
        two.stop()
        assert soon(lambda: zero.failure and one.failure)
        assert zero.failure == Failure("rank 2 of 3 is gone: no sign of life for 1 s", own=True)
        assert one.failure == Failure("rank 2 of 3 is gone: no sign of life for 1 s")


def exchange(rank: int) -> list[Any]:
    with session("exchange") as ranks:
        texts = ranks.all_gather(f"I am {rank}")
        reduced = ranks.reduce([rank], bytes, list, lambda x, y: x + y)
        time.sleep(0.2 * rank)  # an early rank does not read earlier messages again
        reduced_again = ranks.reduce([rank, 9], bytes, list, lambda x, y: x + y)
        assert reduced_again is None or len(reduced_again) == 2 * ranks.size
        large = None if rank != ranks.size - 1 else bytes(range(256)) * 5000
        received = ranks.broadcast(large, ranks.size - 1)
        nothing = ranks.broadcast(b"" if rank == 0 else None)
        ranks.check_equal("a different number", "7")
        hashes = "ß" * (5 << 20)  # 10 MiB: a store of TCP refuses values of 8 MiB
        assert ranks.all_gather(hashes) == [hashes] * ranks.size
    assert current().size == 1
    return [texts, reduced, len(received), received[-1], nothing]


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_exchange(size: int) -> None:
    texts_of_all = [f"I am {r}" for r in range(size)]
    results = values(run(size, exchange))
    for rank, (texts, reduced, length, last, nothing) in enumerate(results):
        assert texts == texts_of_all
        assert reduced == (list(range(size)) if rank == 0 else None)
        assert (length, last, nothing) == (256 * 5000, 255, b"")


def test_a_single_process_is_rank_0_of_1() -> None:
    with session("anything", rank_zero_finishes=True) as ranks:
        assert (ranks.rank, ranks.size, ranks.is_distributed) == (0, 1, False)
        assert ranks.all_gather("a") == ["a"]
        assert ranks.broadcast(b"b") == b"b"
        assert ranks.reduce(3, bytes, len, max) == 3
        ranks.check_equal("a different number", "7")
        ranks.check()
        ranks.continue_on_rank_zero()
