"""A TFLite file, run by LiteRT: its facts, a description in a few lines, its float model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qtool.backends.model_file import (
    Conversion,
    Deployment,
    FileFormat,
    NodeKernel,
    TensorParameters,
)
from qtool.backends.subprocess_runner import TimeLimitError
from qtool.backends.tflite import litert, microcontroller
from qtool.backends.tflite.conversion_record import LAYOUT, METADATA, read_metadata
from qtool.backends.tflite.export import check_writable, write_float
from qtool.backends.tflite.export.convert import without_unused
from qtool.backends.tflite.file import Model, Operator, Tensor, is_tflite, save
from qtool.backends.tflite.file.codes import is_codes, tensor_names
from qtool.backends.tflite.litert_file import Port
from qtool.backends.tflite.planned_export import FORMATS, TfliteExport
from qtool.backends.tflite.self_test import check_self_test, read_self_test
from qtool.backends.tflite.session import LitertSession
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification import (
    compare_delegate_codes,
    compare_litert_codes,
    tflite_coverage,
)
from qtool.core.argument_names import argument
from qtool.core.errors import KernelError, PlanError, VerificationError
from qtool.core.option_names import TFLITE_SUFFIX
from qtool.core.types import Array, Progress
from qtool.planning.targets import Target
from qtool.verification import Coverage, Exactness, FileCheck

_BORDERS = ("QUANTIZE", "DEQUANTIZE")
_PART = re.compile(r"\.part\d+$")
"""End of the name of a part of a result, see `export.linear`."""


class TfliteModelFile:
    """See `ModelFile`.

    Raises:
        FileError: not a TFLite file.
    """

    suffix = TFLITE_SUFFIX

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = TfliteFile(path)

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
        return self.target != microcontroller.TARGET

    @property
    def takes_one_sample(self) -> bool:
        return self.file.is_fixed

    def input_ranges(self) -> Mapping[str, tuple[float, float]]:
        return self.file.input_ranges()

    def verify(self, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
        """Compare the integer engine with LiteRT's reference kernels, and with its delegate."""
        litert.require()
        self_test = check_self_test(self.file)
        if self_test.unmodified is False:  # LiteRT crashes or hangs on some damaged files
            why = "the file was modified"
            return FileCheck(0, 0, 0, 0.0, None, 0, self_test=self_test, not_compared=why)
        inputs = list(batches)
        reference = compare_litert_codes(self.file, progress(inputs))
        try:
            delegate = compare_delegate_codes(self.file, inputs)
        except TimeLimitError:
            raise
        except (KernelError, VerificationError):  # it fails on some files that LiteRT runs
            delegate = None
        return FileCheck(**vars(reference), self_test=self_test, delegate=delegate)

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

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        return compare_litert_codes(self.file, batches)

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

    def write_float(self, path: Path) -> Path:
        path = path.with_suffix(self.suffix)
        save(without_quantization(self.file.model), path)
        return path

    def deployment(self) -> Deployment | None:
        return microcontroller.measure_deployment(self.file)


def check_measurable(target: Target) -> None:
    """Check that LiteRT can time files of a target on this machine.

    Raises:
        PlanError: they are for microcontrollers.
        VerificationError: LiteRT is not installed.
    """
    if target.name == microcontroller.TARGET:
        raise PlanError(
            "a search measures time, and a microcontroller has another than this machine; "
            f"use {argument('--target', 'tflite')}"
        )
    litert.require()


def describe_file(file: TfliteFile) -> str:
    """Return origin, interface and memory of a file, and where Ethos-U runs it."""
    return "\n".join([_origin(file), *_interface(file), *microcontroller.describe_placement(file)])


def _origin(file: TfliteFile) -> str:
    known = {k: file.metadata.get(k) for k in ("version", "target", "plan")}
    if not all(isinstance(v, str) for v in known.values()):
        return "written by another tool than qtool"
    return f"written by qtool {known['version']} for {known['target']}, plan {known['plan']}"


def _interface(file: TfliteFile) -> list[str]:
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


def without_quantization(model: Model) -> Model:
    """Return a model whose codes are floats, of its rounded weights.

    Replaces the float model if only the quantized file is available.

    Raises:
        VerificationError: the model has no quantized tensor.
    """
    if not any(t.quantization is not None for t in model.tensors):
        raise VerificationError("the file has no quantized tensor; pass its float model")
    tensors = list(map(_real, model.tensors))
    same: dict[int, int] = {}
    operators, layers = list[Operator](), dict[int, tuple[int, ...]]()
    for op in model.operators:
        inputs = tuple(same.get(i, i) for i in op.inputs)
        if op.name == "FULLY_CONNECTED" and _PART.search(model.tensors[op.outputs[0]].name):
            layers[op.outputs[0]] = inputs[:2]
        if (
            op.name == "ADD"
            and layers.get(inputs[0])
            and layers[inputs[0]] == layers.get(inputs[1])
        ):
            same[op.outputs[0]] = inputs[0]  # without codes each part is the whole result
        elif op.name in _BORDERS and op.outputs[0] not in model.outputs:
            same[op.outputs[0]] = inputs[0]
        elif op.name in _BORDERS:  # an output keeps its tensor
            operators.append(_copy(model, tensors, inputs[0], op.outputs[0]))
        else:
            operators.append(replace(op, inputs=inputs))
    layout = {k: v for k, v in read_metadata(model).items() if k == LAYOUT}
    changed = replace(
        model,
        tensors=tuple(tensors),
        operators=tuple(operators),
        metadata={METADATA: json.dumps(layout).encode()},
    )
    return without_unused(changed)


def _copy(model: Model, tensors: list[Tensor], source: int, output: int) -> Operator:
    """Return a RESHAPE to the same sizes."""
    tensor = model.tensors[output]
    sizes = np.array(tensor.signature or tensor.shape, np.int32)
    tensors.append(Tensor(f"{tensor.name}.sizes", "int32", sizes.shape, data=sizes))
    return Operator("RESHAPE", (source, len(tensors) - 1), (output,), {"new_shape": sizes})


def _real(tensor: Tensor) -> Tensor:
    """Return a tensor in float, a constant dequantized."""
    q = tensor.quantization
    if q is None or not (is_codes(tensor) or tensor.type == "int32"):
        return tensor
    if tensor.data is None:
        return replace(tensor, type="float32", quantization=None)
    shape = [1] * tensor.data.ndim
    if len(q.scale) > 1:
        shape[q.axis] = len(q.scale)
    scale = q.scale.reshape(shape if len(q.scale) > 1 else -1)
    zero = q.zero_point.reshape(shape if len(q.zero_point) > 1 else -1)
    real = (tensor.data.astype(np.float64) - zero) * scale
    return replace(tensor, type="float32", data=real.astype(np.float32), quantization=None)


TFLITE = FileFormat(
    FORMATS,
    TfliteModelFile.suffix,
    is_tflite,
    TfliteModelFile,
    LitertSession,
    write_float,
    TfliteExport,
    check_measurable,
    runtime=lambda: f"{litert.TITLE} {litert.version()}",
    check_graph=check_writable,
)
