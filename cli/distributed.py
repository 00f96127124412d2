"""A command in the processes that torchrun started, as one: all do their share of its data, rank 0
writes and speaks, and the exit code is the same on all.

    torchrun --nproc-per-node 4 -m qtool calibrate MODEL --data FOLDER -o FILE
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qtool.distributed import Ranks

SHARED = ("blockwise", "calibrate", "evaluate", "quantize", "report")  # others are rank 0's


def as_one(work: Callable[[], Any]) -> Any:
    """Runs a command in all processes of torchrun; in a single one as it is.

    Raises:
        SystemExit: with the exit code of rank 0, or of another rank that failed and says why.
    """
    if not _several():
        return work()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its store warns with stacks of C++
    from qtool.distributed import OtherRankError, session

    try:
        with _silent(), _group(), session("qtool", rank_zero_finishes=True) as ranks:
            code = _code_of(work, ranks)
            code = int(ranks.broadcast(None if ranks.rank else str(code).encode()))
    except OtherRankError as error:
        raise SystemExit(error.code) from error
    if code:
        raise SystemExit(code)
    return None


def begins(command: str) -> None:
    """All ranks are at the same command; one that has nothing to share ends here on all but one."""
    if _several():
        from qtool.distributed import current

        current().check_equal("another command", command)
        if command not in SHARED:
            current().continue_on_rank_zero()


def ends() -> None:
    """torchrun ends all processes when the first has failed; by now each does so itself, with the
    same exit code."""
    if _several():
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


def _code_of(work: Callable[[], Any], ranks: Ranks) -> int:
    """The exit code of a command that ends as it may: done, or with a goal missed."""
    from qtool.core.errors import DataError
    from qtool.distributed import RankDone

    try:
        work()
    except RankDone:
        return 0
    except DataError as error:  # batches are counted in the share
        nth = {2: "2nd", 3: "3rd"}.get(ranks.size, f"{ranks.size}th")
        where = f"rank {ranks.rank} of {ranks.size}, in its share of every {nth} batch"
        raise DataError(f"{where}: {error}") from error
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit as error:
        if error.code not in (None, 0, 1):
            raise
        return int(error.code or 0)
    return 0


@contextmanager
def _silent() -> Iterator[None]:
    """All ranks but the first say nothing; an error that is theirs is said afterwards."""
    if not int(os.environ.get("RANK") or 0):
        yield
        return
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        yield


@contextmanager
def _group() -> Iterator[None]:
    """The process group that torchrun describes, and a GPU of its own for each rank."""
    import torch
    from torch import distributed as dist

    from qtool.core.errors import RanksError

    if dist.is_initialized():
        yield
        return
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0) % gpus)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    except (RuntimeError, ValueError) as error:
        raise RanksError(
            f"the other processes that WORLD_SIZE speaks of cannot be met ({error}); start all of "
            "them with torchrun, or unset WORLD_SIZE to run alone"
        ) from error
    try:
        yield
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()
