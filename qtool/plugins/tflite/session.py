"""A session of a TFLite file in LiteRT."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.session import Clock, PortInfo, time_calls
from qtool.core.types import Array
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.litert_file import LitertFile, Port

_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bool": "tensor(bool)",
}

# Arrays are in the layout of the network, and floats at the interface. The file runs as
# applications run it, with XNNPACK, inside this process; a first run in another one shows that it
# does not crash.


class LitertSession:
    """See `Session`: a TFLite file in LiteRT.

    Args:
        path: the file.
        threads: number of threads of the interpreter; 0: one.

    Raises:
        FileError: not a TFLite file.
        InstallError: LiteRT is not installed.
        VerificationError: LiteRT refuses the file or crashes on it.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        litert.require()
        self.file, self._threads = LitertFile(path), max(threads, 1)
        self.inputs, self.outputs = (
            [_info(port) for port in ports] for ports in (self.file.inputs, self.file.outputs)
        )
        self.is_foreign = self.file.is_foreign
        self.file.run(self._zeros(), default=True)
        self._last: tuple[list[Any], list[Array]] = ([], [])
        self._timed: list[Array] = []  # the inputs that the interpreter has

    def _zeros(self) -> list[Array]:
        return [np.zeros([abs(s) for s in p.shape], p.dtype) for p in self.file.inputs]

    @cached_property
    def _interpreter(self) -> Any:
        """The interpreter after a run; the first call of `run` makes it. Who only asks for inputs
        and outputs is safe from files on which LiteRT hangs at times."""
        path = str(self.file.path)
        with _quiet():
            interpreter = litert.interpreter(path, "AUTO", threads=self._threads)
            return litert.invoke(interpreter, path, self.file.arrays(self._zeros()))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        if [id(a) for a in arrays] != [id(a) for a in self._last[0]]:
            self._last = list(arrays), self.file.arrays(list(arrays))
        self._timed = []
        results = self.file.split(self._last[1], self._invoke)
        return [port.back(r) for port, r in zip(self.file.outputs, results, strict=True)]

    def seconds(self, arrays: Sequence[Array], times: int, clock: Clock) -> float:
        """Return the seconds of some runs on inputs that are there already: setting them and
        reading outputs in Python takes longer than a small network, and no application does it so.

        A file of a fixed batch of 1 runs once for each sample.
        """
        fixed = self.file.is_fixed and bool(arrays)
        samples = len(arrays[0]) if fixed else 1
        if list(map(id, arrays)) != list(map(id, self._timed)):
            stored = self.file.arrays(list(arrays))
            self._timed = list(arrays)
            litert.invoke(
                self._interpreter,
                str(self.file.path),
                [a[:1] for a in stored] if fixed else stored,
            )
        return time_calls(self._interpreter.invoke, times * samples, clock)

    def _invoke(self, arrays: Any) -> list[Array]:
        return litert.outputs(litert.invoke(self._interpreter, str(self.file.path), arrays))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what LiteRT writes to the stream of errors when it makes its delegate."""
    usual, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(usual, 2)
        os.close(usual)
        os.close(nothing)


def _info(port: Port) -> PortInfo:
    if port.params is not None:
        kind = _TYPES["float32"]  # codes are quantized and dequantized on the way
    else:
        kind = _TYPES.get(port.dtype, f"tensor({port.dtype})")
    shape: list[int | str] = [f"{port.name}.{i}" if s < 0 else s for i, s in enumerate(port.shape)]
    if port.shape and port.shape[0] in (-1, 1):
        shape[0] = "batch"  # fixed ones are run sample by sample
    return PortInfo(port.name, kind, tuple(shape))
