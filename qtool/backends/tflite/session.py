"""A TFLite file behind the interface of an ONNX Runtime session, for evaluation and timing.

Arrays are in the layout of the network, and floats at the interface. The file runs as applications
run it, with XNNPACK, inside this process; a first run in another one shows that it does not crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.tflite import litert
from qtool.backends.tflite.tflite_file import Port, TfliteFile

_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "bool": "tensor(bool)",
}


@dataclass(frozen=True)
class PortInfo:
    """An input or output as a session describes it.

    Attributes:
        name: of the network.
        type: "tensor(float)", ...
        shape: a name for the batch.
    """

    name: str
    type: str
    shape: tuple[int | str, ...]


class LitertSession:
    """A TFLite file that can be run.

    Args:
        path: the file.
        threads: of the interpreter; 0 for one.

    Raises:
        FileError: not a TFLite file.
        VerificationError: LiteRT is missing, refuses the file or crashes on it.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        litert.require()
        self.file = TfliteFile(path)
        zeros = [np.zeros([abs(s) for s in p.shape], p.dtype) for p in self.file.inputs]
        self.file.run(zeros, default=True)
        with _quiet():
            self._interpreter = litert.interpreter(str(path), "AUTO", threads=max(threads, 1))
            litert.invoke(self._interpreter, str(path), self.file.arrays(zeros))
        self._last: tuple[list[Any], list[np.ndarray[Any, Any]]] = ([], [])

    def get_inputs(self) -> list[PortInfo]:
        return [_info(p) for p in self.file.inputs]

    def get_outputs(self) -> list[PortInfo]:
        return [_info(p) for p in self.file.outputs]

    def run(self, _: None, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """Return all outputs. The first argument is None, as for ONNX Runtime."""
        arrays = [feed[p.name] for p in self.file.inputs]
        if [id(a) for a in arrays] != [id(a) for a in self._last[0]]:
            self._last = arrays, self.file.arrays(arrays)
        results = self.file.split(self._last[1], self._invoke)
        return [port.back(r) for port, r in zip(self.file.outputs, results, strict=True)]

    def prepared(self, feed: Mapping[str, Any]) -> Callable[[], object]:
        """Return a function that runs on inputs that are there already: setting them and reading
        outputs in Python takes longer than a small network, and no application does it so.

        A file of a fixed batch of 1 runs once for each sample.
        """
        arrays = self.file.arrays([feed[p.name] for p in self.file.inputs])
        invoke, samples = self._interpreter.invoke, 1
        if self.file.is_fixed:
            samples, arrays = len(arrays[0]), [a[:1] for a in arrays]
        litert.invoke(self._interpreter, str(self.file.path), arrays)
        return invoke if samples == 1 else lambda: [invoke() for _ in range(samples)]

    def _invoke(self, arrays: Any) -> list[np.ndarray[Any, Any]]:
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
