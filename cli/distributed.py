"""Commands in several processes started by torchrun.

Each rank processes its share of the data, rank 0 writes files and prints, and all ranks exit with
the same code.

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

SHARED = ("calibrate", "evaluate", "quantize")  # the others run on rank 0


def run_on_all_ranks(work: Callable[[], Any]) -> Any:
    """Run a command in all processes of torchrun, or in this one if there are no others.

    Raises:
        SystemExit: with the exit code of rank 0, or of another rank that failed and says why.
    """
    if not has_ranks():
        return work()
    _check_environment()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its store warns with C++ stack traces
    from qtool.distributed import OtherRankError, session

    try:
        with (
            _quiet_unless_first(),
            _process_group(),
            session("qtool", rank_zero_finishes=True) as ranks,
        ):
            code = _code_of(work, ranks)
            code = int(ranks.broadcast(None if ranks.rank else str(code).encode()))
    except OtherRankError as error:
        raise SystemExit(error.code) from error
    if code:
        raise SystemExit(code)
    return None


def check_same_command(command: str) -> None:
    """Check that all ranks run the same command; unless it is shared, only rank 0 continues."""
    if has_ranks():
        from qtool.distributed import current

        current().check_equal("a different command", command)
        if command not in SHARED:
            current().continue_on_rank_zero()


def ignore_sigterm() -> None:
    """Ignore the SIGTERM that torchrun sends when a process has failed.

    By now each rank exits by itself, with the same code.
    """
    if has_ranks():
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def has_ranks() -> bool:
    """Return whether torchrun started several processes; a size that is no number counts as one."""
    return (os.environ.get("WORLD_SIZE") or "1").strip() not in ("0", "1")


def _check_environment() -> None:
    """Check the numbers that torchrun sets.

    Raises:
        RanksError: one is no number.
    """
    from qtool.core.errors import RanksError
    from qtool.core.remedies import Setup

    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        value = os.environ.get(name) or "0"
        if not value.strip().isdecimal():
            raise RanksError(
                f"the environment variable {name} is {value!r}, not a number",
                Setup("start all ranks with torchrun"),
                Setup("unset it to run in one process"),
            )


def _code_of(work: Callable[[], Any], ranks: Ranks) -> int:
    """Run a command and return its exit code: 0, or 1 for a missed goal."""
    from qtool.core.errors import DataError
    from qtool.distributed import RankDone

    try:
        work()
    except RankDone:
        return 0
    except DataError as error:  # its batch numbers count the batches of this rank
        nth = {2: "2nd", 3: "3rd"}.get(ranks.size, f"{ranks.size}th")
        where = f"rank {ranks.rank} of {ranks.size}, in its share of every {nth} batch"
        raise DataError(f"{where}: {error.problem}", *error.remedies) from error
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit as error:
        if error.code not in (None, 0, 1):
            raise
        return int(error.code or 0)
    return 0


@contextmanager
def _quiet_unless_first() -> Iterator[None]:
    """Silence all ranks but rank 0; their errors are printed afterwards."""
    if not int(os.environ.get("RANK") or 0):
        yield
        return
    with Path(os.devnull).open("w") as null, redirect_stdout(null), redirect_stderr(null):
        yield


@contextmanager
def _default_signals() -> Iterator[None]:
    """Let signals end the process at once in this context; nothing is written yet."""
    handlers = {}
    with suppress(ValueError):  # not in the main thread
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if (number := getattr(signal, name, None)) is not None:
                handlers[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _process_group() -> Iterator[None]:
    """Open the process group that torchrun describes, and select one GPU per rank."""
    import torch
    from torch import distributed as dist

    from qtool.core.errors import RanksError
    from qtool.core.remedies import Setup

    if dist.is_initialized():
        yield
        return
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0) % gpus)
    try:
        with _default_signals():  # it waits in C++, where Python's handlers do not run
            dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    except (RuntimeError, ValueError) as error:
        raise RanksError(
            f"cannot reach the other ranks of WORLD_SIZE ({error})",
            Setup("start all of them with torchrun"),
            Setup("unset WORLD_SIZE to run in one process"),
        ) from error
    try:
        yield
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()
