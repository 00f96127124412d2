"""Real processes in a real process group on this machine, for tests."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed as dist

LIMIT = 120.0  # seconds after which a test says that a rank hangs

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["qtool.api", "torch.distributed.distributed_c10d"])


@dataclass(frozen=True)
class Ending:
    """How a rank ended. value: what its function returned; error: type and text of what it raised;
    code: of a process that ended without either."""

    value: Any = None
    error: str = ""
    code: int | None = 0


def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Ending]:
    """Calls `function(rank, *arguments)` in `size` processes of one gloo group, whose store is in
    this process, as torchrun has it in its own."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = []
    for rank in range(size):
        ours, theirs = _context.Pipe(duplex=False)
        given = (theirs, store.port, rank, size, function, arguments)
        process = _context.Process(target=_main, args=given, daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    return [_ending(process, pipe, rank) for rank, (process, pipe) in enumerate(started)]


def values(endings: list[Ending]) -> list[Any]:
    """What all returned; none may have failed."""
    assert [e.error for e in endings] == [""] * len(endings)
    assert all(e.code == 0 for e in endings)
    return [e.value for e in endings]


def _ending(process: Any, pipe: Connection, rank: int) -> Ending:
    try:
        assert pipe.poll(LIMIT), f"rank {rank} hangs"
        found: Ending = pipe.recv()
    except EOFError:
        process.join(LIMIT)
        return Ending(code=process.exitcode)
    finally:
        if process.is_alive() and not pipe.poll(0):
            process.join(5)
        process.kill()
        process.join()
        pipe.close()
    return found


def _main(
    pipe: Connection, port: int, rank: int, size: int, function: Any, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        pipe.send(Ending(function(rank, *arguments)))
    except Exception as error:  # noqa: BLE001  # whatever a rank raises
        pipe.send(Ending(error=f"{type(error).__name__}: {error}"))
