"""Sessions of several ranks: agreement on the call, failures, and the end of all."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist

import qtool
from qtool.core.errors import DataError
from qtool.distributed import collective, messages, session
from tests.distributed.processes import run, values


@collective
def twice(rank: int) -> list[str]:
    with session("inner") as ranks:
        return ranks.all_gather(str(rank))


def one_after_another(rank: int) -> list[list[str]]:
    return [twice(rank), twice(rank + 2)]


def test_sessions_follow_each_other_and_contain_each_other() -> None:
    assert values(run(2, one_after_another)) == [[["0", "1"], ["2", "3"]]] * 2


def in_a_subgroup(rank: int) -> Any:
    group = dist.new_group([0, 2])
    with qtool.use_process_group(None), session("alone") as ranks:
        assert not ranks.is_distributed
    with qtool.use_process_group(group), session("together") as ranks:
        folded = ranks.reduce([rank], bytes, list, lambda x, y: x + y)
        return [
            ranks.all_gather(str(rank)),
            folded,
            ranks.broadcast(b"last" if rank == 2 else None, 1),
        ]


def test_a_subgroup() -> None:
    first, other, last = run(3, in_a_subgroup)
    assert first.value == [["0", "2"], [0, 2], b"last"]
    assert last.value == [["0", "2"], None, b"last"]
    assert other.error == "RanksError: this process is not a member of the process group"


def in_files(rank: int, folder: Path) -> list[str]:
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    with session("with files") as ranks:
        return ranks.all_gather(str(rank))


def test_a_store_in_files(tmp_path: Path) -> None:
    assert values(run(2, in_files, tmp_path)) == [["0", "1"]] * 2


def fails(rank: int) -> None:
    with session("work") as ranks:
        if rank == 1:
            raise DataError("batch 3 holds NaN")
        while True:
            ranks.check()
            time.sleep(0.01)


def waits(rank: int) -> None:
    with session("work") as ranks:
        if rank == 1:
            raise ValueError("a bug")
        ranks.all_gather("a")


def test_an_error_of_one_rank_ends_all() -> None:
    zero, one, two = run(3, fails)
    assert one.error == "DataError: batch 3 holds NaN"
    text = "OtherRankError: rank 1 of 3 failed: batch 3 holds NaN"
    assert (zero.error, two.error) == (text, text)
    zero, one, two = run(3, waits)
    assert one.error == "ValueError: a bug"
    assert zero.error == "OtherRankError: rank 1 of 3 failed: ValueError: a bug"


def dies(rank: int, victim: int, how: str) -> None:
    with qtool.use_process_group(patience=1), session("work") as ranks:
        ranks.all_gather("here")
        if rank == victim and how == "exit":
            os._exit(3)
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.reduce([rank], bytes, list, lambda x, y: x + y)
        while True:
            ranks.check()
            time.sleep(0.01)


@pytest.mark.parametrize(("victim", "how"), [(0, "kill"), (1, "exit"), (2, "kill")])
def test_a_rank_that_dies_ends_the_others(victim: int, how: str) -> None:
    endings = run(3, dies, victim, how)
    assert endings.pop(victim).code == (3 if how == "exit" else -signal.SIGKILL)
    for ending in endings:
        assert ending.error.endswith(f"rank {victim} of 3 is gone: no sign of life for 1 s")


def comes_late(rank: int) -> None:
    if rank == 0:
        messages.NOTICE_TIMEOUT = 0.1  # the other rank has no session that would notice
        with qtool.use_process_group(wait=1), session("calibrate"):
            pass


def test_a_rank_that_does_not_call() -> None:
    zero, one = run(2, comes_late)
    assert zero.error == (
        "RanksError: rank 1 of 2 did not call calibrate within 1 s; call it on every rank, or in "
        "`with qtool.use_process_group(None)` to use one process"
    )
    assert one.error == ""


def another_call(rank: int) -> None:
    messages.NOTICE_TIMEOUT = 1000.0  # a rank that fails, too, notices that another one has
    with session("calibrate" if rank else "evaluate"):
        pass


def another_version(rank: int) -> None:
    session.__wrapped__.__globals__["version_of"] = lambda package: f"{package} 1.{rank}"
    with session("calibrate"):
        pass


def different_model(rank: int) -> None:
    with session("calibrate") as ranks:
        ranks.check_equal("a different model", "abc" if rank < 2 else "d" * 99)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (another_call, "rank 1 of 3 called calibrate, rank 0 evaluate"),
        (another_version, "rank 1 of 3 has qtool qtool 1.1, rank 0 qtool 1.0; install the same"),
        (
            different_model,
            "rank 2 of 3 has a different model than rank 0 (dddddddddddd... and abc)",
        ),
    ],
)
def test_ranks_that_do_not_fit(function: Any, text: str) -> None:
    for ending in run(3, function):
        assert text in ending.error


def closed_before(rank: int) -> None:
    group = dist.new_group([0, 1])
    dist.destroy_process_group()
    with session("alone") as ranks:
        assert not ranks.is_distributed
    with qtool.use_process_group(group), session("together"):
        pass


def closed_meanwhile(rank: int) -> None:
    with session("together") as ranks:
        ranks.all_gather("here")
        if rank == 0:
            dist.destroy_process_group()
        ranks.broadcast(b"a" if rank == 0 else None)


def test_a_group_that_is_closed() -> None:
    for ending in run(2, closed_before):
        assert ending.error.startswith("RanksError: the process group is not open")
    zero, one = run(2, closed_meanwhile)
    assert zero.error.startswith("RanksError: the process group was closed")
    assert "the process group was closed" in one.error
