"""A TFLite model without its quantization, where only the quantized file is available."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from qtool.core.errors import VerificationError
from qtool.core.remedies import Argument
from qtool.plugins.tflite.conversion_record import LAYOUT, METADATA, read_metadata
from qtool.plugins.tflite.export.convert import without_unused
from qtool.plugins.tflite.file import Model, Operator, Tensor, save
from qtool.plugins.tflite.file.codes import is_codes
from qtool.plugins.tflite.litert_file import LitertFile

_BORDERS = ("QUANTIZE", "DEQUANTIZE")
_PART = re.compile(r"\.part\d+$")
"""End of the name of a part of a result, see `export.linear`."""


def write_float(source: LitertFile, path: Path) -> Path:
    """Write a file without quantization; see `ModelFile.write_float`."""
    save(without_quantization(source.model), path)
    return path


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
