"""A TFLite file, run by LiteRT: its checks and its float model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qtool.backends.subprocess_runner import TimeLimitError
from qtool.core.errors import KernelError, PlanError, VerificationError
from qtool.core.remedies import Argument
from qtool.core.types import Array, Progress
from qtool.planning.targets import Target
from qtool.plugins.tflite import deployment, litert
from qtool.plugins.tflite.conversion_record import LAYOUT, METADATA, read_metadata
from qtool.plugins.tflite.export.convert import without_unused
from qtool.plugins.tflite.file import Model, Operator, Tensor, save
from qtool.plugins.tflite.file.codes import is_codes
from qtool.plugins.tflite.readable import ReadableTflite
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification import (
    compare_delegate_codes,
    compare_litert_codes,
)
from qtool.verification import Exactness, FileCheck

_BORDERS = ("QUANTIZE", "DEQUANTIZE")
_PART = re.compile(r"\.part\d+$")
"""End of the name of a part of a result, see `export.linear`."""


class TfliteModelFile(ReadableTflite):
    """See `ModelFile`.

    Raises:
        FileError: not a TFLite file.
    """

    file: TfliteFile

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, TfliteFile(path)

    def verify(self, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
        """Compare the integer engine with LiteRT's reference kernels, and with its delegate."""
        self_test = self.check_self_test()
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

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        return compare_litert_codes(self.file, batches)

    def write_float(self, path: Path) -> Path:
        path = path.with_suffix(self.suffix)
        save(without_quantization(self.file.model), path)
        return path


def check_measurable(target: Target) -> None:
    """Check that LiteRT can time files of a target on this machine.

    Raises:
        PlanError: they are for microcontrollers.
        InstallError: LiteRT is not installed.
    """
    if target.name == deployment.TARGET:
        raise PlanError(
            "a search measures time, and a microcontroller has another than this machine",
            Argument("--target", "tflite", "use {}"),
        )
    litert.require()


def without_quantization(model: Model) -> Model:
    """Return a model whose codes are floats, of its rounded weights.

    Replaces the float model if only the quantized file is available.

    Raises:
        VerificationError: the model has no quantized tensor.
    """
    if not any(t.quantization is not None for t in model.tensors):
        raise VerificationError(
            "the file has no quantized tensor",
            Argument("--model", text="pass its float model with {}"),
        )
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
