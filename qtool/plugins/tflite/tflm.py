"""TensorFlow Lite Micro, the runtime of microcontrollers, as the Python package has it.

It runs in a process of its own, which it ends on files that it does not support.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends import subprocess_runner
from qtool.backends.pipe_process import Message
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError
from qtool.core.types import Array
from qtool.core.versions import version_of

PACKAGE = "tflite-micro"
TITLE = "TensorFlow Lite Micro"
PROFILE = "tflite-micro"
"""The numerics profile of its reference kernels."""

_RUNNER = subprocess_runner.SubprocessRunner(__name__, TITLE)
_MAX_ARENA = 64 * 2**20
_TOTAL = re.compile(r"Arena allocation (total|head) (\d+) bytes")


@dataclass(frozen=True)
class Arena:
    """The working memory of a network, in bytes.

    Attributes:
        total: size that the arena must have.
        tensors: size of the tensors that are needed at one time.
    """

    total: int
    tensors: int


def version() -> str | None:
    """Return the installed version, None if it is not installed."""
    return version_of(PACKAGE) or None


def run(path: str | Path, arrays: Arrays) -> list[Array]:
    """Return the outputs for samples that are run one by one.

    Args:
        path: a file for one sample.
        arrays: one for each input, as the file has it, samples along the first axis.

    Raises:
        VerificationError: it refuses the file.
    """
    return list(_RUNNER.call("run", str(path), arrays)[1])


def arena(path: str | Path) -> Arena:
    """Return the memory that a network needs, as the recording allocator reports it."""
    sizes = _RUNNER.call("arena", str(path))[0]
    return Arena(sizes["total"], sizes["head"])


def serve() -> None:
    """Answer calls in the subprocess."""
    subprocess_runner.serve({"run": _handle_run, "arena": _handle_arena})


def _interpreter(path: str) -> Any:
    from tflite_micro import runtime  # an extra

    try:
        return runtime.Interpreter.from_file(path, arena_size=_MAX_ARENA)
    except (ValueError, RuntimeError) as error:
        raise VerificationError(f"{path}: {TITLE} does not load it: {error}") from error


def _handle_run(path: str, arrays: Arrays) -> tuple[Message, Arrays]:
    interpreter = _interpreter(path)
    results: list[list[Array]] = []
    count = _outputs(path)
    for sample in range(len(arrays[0])):
        for index, array in enumerate(arrays):
            interpreter.set_input(np.ascontiguousarray(array[sample : sample + 1]), index)
        interpreter.invoke()
        results.append([interpreter.get_output(i).copy() for i in range(count)])
    return {}, [np.concatenate(parts) for parts in zip(*results, strict=True)]


def _outputs(path: str) -> int:
    from qtool.plugins.tflite.file import load

    return len(load(path).outputs)


def _handle_arena(path: str, _: Arrays) -> tuple[Message, Arrays]:
    """Return the sizes that the interpreter prints to the stream of errors."""
    interpreter = _interpreter(path)
    with tempfile.TemporaryFile() as file:
        usual = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            interpreter.print_allocations()
        finally:
            os.dup2(usual, 2)
            os.close(usual)
        file.seek(0)
        text = file.read().decode(errors="replace")
    sizes = {kind: int(size) for kind, size in _TOTAL.findall(text)}
    if "total" not in sizes:
        raise VerificationError(f"{path}: {TITLE} reports no size of the arena")
    return dict(sizes), ()
