"""A TFLite file, read and run by LiteRT without torch: facts, and a description in a few lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.readable_file import (
    Conversion,
    Deployment,
    NodeKernel,
    TensorParameters,
)
from qtool.backends.session import Clock, PortInfo, time_calls
from qtool.core.errors import VerificationError
from qtool.core.option_names import TFLITE_SUFFIX
from qtool.core.output_evidence import Evidence, Operator, output_evidence, reads_images
from qtool.core.types import Array
from qtool.plugins.tflite import deployment, litert
from qtool.plugins.tflite.coverage import tflite_coverage
from qtool.plugins.tflite.file.codes import tensor_names
from qtool.plugins.tflite.litert_file import LitertFile, Port
from qtool.plugins.tflite.self_test import check_self_test, read_self_test
from qtool.verification import Coverage, SelfCheck

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
        self._last: tuple[list[Any], list[np.ndarray[Any, Any]]] = ([], [])
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


class ReadableTflite:
    """See `ReadableFile`.

    Raises:
        FileError: not a TFLite file.
    """

    suffix = TFLITE_SUFFIX

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = LitertFile(path)

    @property
    def parts(self) -> list[Path]:
        return [self.path]

    @property
    def is_quantized(self) -> bool:
        return any(t.quantization is not None for t in self.file.model.tensors)

    @property
    def maker(self) -> str:
        version = self.file.metadata.get("version")
        return f"qtool {version}" if version else self.file.model.description or "unknown"

    @property
    def target(self) -> str | None:
        name = self.file.metadata.get("target")
        return name if isinstance(name, str) else None

    @property
    def runs_here(self) -> bool:
        return self.target != deployment.TARGET

    @property
    def takes_one_sample(self) -> bool:
        return self.file.is_fixed

    def input_ranges(self) -> Mapping[str, tuple[float, float]]:
        return self.file.input_ranges()

    def output_evidence(self) -> dict[str, Evidence]:
        model = self.file.model
        names = tensor_names(model)
        operators = (
            Operator(
                each.name,
                " ".join(names[i] for i in (*each.outputs[:1], *each.inputs) if i >= 0),
                list(map(str, each.inputs)),
                list(map(str, each.outputs)),
            )
            for each in model.operators
        )
        known = output_evidence(
            operators,
            list(map(str, model.inputs)),
            list(map(str, model.outputs)),
            Evidence(reads_images=reads_images(p.shape for p in self.file.inputs)),
        )
        ports = zip(self.file.outputs, model.outputs, strict=True)
        return {port.name: known[str(i)] for port, i in ports}

    def known_sizes(self) -> Mapping[str, int]:
        return {}

    def conversion(self) -> Conversion | None:
        record = self.file.record
        return None if record is None else Conversion(record.info, record)

    def parameters(self) -> list[TensorParameters]:
        rows, names = [], tensor_names(self.file.model)
        for name, tensor in zip(names, self.file.model.tensors, strict=True):
            q = tensor.quantization
            if q is not None:
                scales, zeros = map(float, q.scale), map(int, q.zero_point)
                rows.append(TensorParameters(name, tensor.type, tuple(scales), tuple(zeros)))
        return rows

    def constants(self) -> Iterator[Array]:
        return (t.data for t in self.file.model.tensors if t.data is not None)

    def self_test(self) -> str:
        try:
            test = read_self_test(self.file)
        except VerificationError as error:
            return str(error)
        return "no self-test in this file" if test is None else str(test)

    def notes(self) -> str:
        return f"{describe_file(self.file)}\n{self.self_test()}"

    def coverage(self) -> Coverage:
        return tflite_coverage(self.file)

    def node_names(self) -> list[str]:
        outputs = (o for op in self.file.model.operators for o in op.outputs)
        return [self.file.layers[i] for i in (*self.file.model.inputs, *outputs)]

    def node_times(self, inputs: Sequence[Array], threads: int, runs: int) -> dict[str, NodeKernel]:
        """Time each operator alone: LiteRT's Python package has no profile."""
        kernels: dict[str, dict[str, None]] = {}
        spent: dict[str, float] = {}
        for op, microseconds in self.file.time_operators(inputs, threads, runs):
            name = self.file.layers[op.outputs[0]]
            kernels.setdefault(name, {})[op.name] = None
            spent[name] = spent.get(name, 0.0) + microseconds
        return {name: NodeKernel(" + ".join(kernels[name]), spent[name]) for name in kernels}

    def deployment(self) -> Deployment | None:
        return deployment.measure_deployment(self.file)

    def check_self_test(self) -> SelfCheck:
        litert.require()
        return check_self_test(self.file)


def describe_file(file: LitertFile) -> str:
    """Return origin, interface and memory of a file, and where Ethos-U runs it."""
    return "\n".join([_origin(file), *_interface(file), *deployment.describe_placement(file)])


def _origin(file: LitertFile) -> str:
    known = {k: file.metadata.get(k) for k in ("version", "target", "plan")}
    if not all(isinstance(v, str) for v in known.values()):
        return "written by another tool than qtool"
    return f"written by qtool {known['version']} for {known['target']}, plan {known['plan']}"


def _interface(file: LitertFile) -> list[str]:
    lines = [f"input {_port(p)}" for p in file.inputs]
    return [*lines, *(f"output {_port(p)}" for p in file.outputs)]


def _port(port: Port) -> str:
    sizes = [port.shape[i] for i in port.order]
    shape = ", ".join("batch" if s < 0 else str(s) for s in sizes)
    last = ", channels last" if port.order == (0, 2, 3, 1) else ""
    params = port.params
    text = f"'{port.name}': {port.dtype} [{shape}]{last}"
    if params is None:
        return text
    return f"{text}, scale {float(params.scale):.6g}, zero point {int(params.zero_point)}"
