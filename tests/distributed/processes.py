"""Real processes in a real process group on this machine, for tests."""

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import qtool
from qtool.distributed import messages

PATIENCE = 3.0  # seconds of silence after which a rank of a command is dead
LIMIT = 120.0  # seconds after which a test says that a rank hangs
PERIOD = 0.1  # seconds between heartbeats: each failure is noticed that much later

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as the command line does, before torch
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([  # and what is imported later, but for ONNX Runtime's thread
    *("qtool.api", "qtool.cli", "qtool.passes", "torch.distributed.distributed_c10d"),
    *("torch._dynamo", "torch.export._trace", "torch.onnx._internal.exporter._core"),
    "onnxscript.function_libs.torch_lib.ops",
])  # fmt: skip


@dataclass(frozen=True)
class Ending:
    """How a rank ended.

    Attributes:
        value: what its function returned.
        error: type and text of its exception.
        code: exit code of a process that ended without either.
    """

    value: Any = None
    error: str = ""
    code: int | None = 0


def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Ending]:
    """Call `function(rank, *arguments)` in `size` processes of one gloo group, whose store is in
    this process, as with torchrun."""
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


class Command:
    """`python -m qtool` in a forked process, which does not import torch again."""

    def __init__(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], cwd: Path, said: Path
    ) -> None:
        self._said = [said.with_suffix(end) for end in (".out", ".err")]
        given = (arguments, environment, cwd, self._said)
        self._process = _context.Process(target=_command, args=given, daemon=True)
        self._process.start()

    @property
    def code(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def ended(self, limit: float = 2 * LIMIT) -> tuple[int, str, str]:
        """(exit code, output, errors)"""
        self._process.join(limit)
        code = self._process.exitcode
        self._process.kill()
        assert code is not None, "the command hangs"
        output, errors = (file.read_text() for file in self._said)
        return code, output, errors


def _command(
    arguments: tuple[str, ...], environment: Mapping[str, str], cwd: Path, said: list[Path]
) -> None:
    for number, file in enumerate(said, 1):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), number)
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = None
    torch.set_num_threads(1)
    torch.seed()  # as a new process does
    messages.PERIOD = PERIOD
    sys.argv = ["qtool", *arguments]
    sys.path.insert(0, str(cwd))
    with qtool.use_process_group(patience=PATIENCE):
        runpy.run_module("qtool", run_name="__main__", alter_sys=True)


def values(endings: list[Ending]) -> list[Any]:
    """Return the values of all ranks; fail if one failed."""
    assert [e.error for e in endings] == [""] * len(endings)
    assert all(e.code == 0 for e in endings)
    return [e.value for e in endings]


def _ending(process: Any, pipe: Connection, rank: int) -> Ending:
    try:
        assert pipe.poll(LIMIT), f"rank {rank} hangs"
        ending: Ending = pipe.recv()
    except EOFError:
        process.join(LIMIT)
        return Ending(code=process.exitcode)
    finally:
        if process.is_alive() and not pipe.poll(0):
            process.join(5)
        process.kill()
        process.join()
        pipe.close()
    return ending


def _main(
    pipe: Connection, port: int, rank: int, size: int, function: Any, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    messages.PERIOD = PERIOD
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        pipe.send(Ending(function(rank, *arguments)))
    except Exception as error:  # noqa: BLE001  # whatever a rank raises
        pipe.send(Ending(error=f"{type(error).__name__}: {error}"))
