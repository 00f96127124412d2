"""The collectives of a session, in one process and in several."""

from __future__ import annotations

import time
from typing import Any

import pytest

from qtool.distributed import current, session
from tests.distributed.processes import run, values


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
    assert current().size == 1
    return [texts, reduced, len(received), received[-1], nothing]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
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
