"""What the codes of tensors mean, and how tensors are named."""

from __future__ import annotations

from qtool.core.affine import Affine
from qtool.core.errors import KernelError
from qtool.core.types import INT8, INT16, INT32, UINT8
from qtool.plugins.tflite.file.model import Model, Operator, Quantization, Tensor

_QTYPES = {"int8": INT8, "uint8": UINT8, "int16": INT16, "int32": INT32}


def affine_of(tensor: Tensor, axis: int | None = None) -> Affine:
    """Return the quantization parameters of a tensor.

    Args:
        tensor: tensor of integers.
        axis: axis of the channels in the layout of the engine; by default that of the file.

    Raises:
        KernelError: it has none.
    """
    quantized, qtype = tensor.quantization, _QTYPES.get(tensor.type)
    if quantized is None or qtype is None:
        raise KernelError(f"'{tensor.name}' ({tensor.type}) has no quantization parameters")
    scale, zero = quantized.scale.astype("float32"), quantized.zero_point.astype("int64")
    if len(scale) == 1:
        return Affine(qtype, scale[:1].reshape(()), zero[:1].reshape(()))
    return Affine(qtype, scale, zero, quantized.axis if axis is None else axis)


def is_codes(tensor: Tensor) -> bool:
    """Return whether a tensor holds codes of activations."""
    return isinstance(tensor.quantization, Quantization) and tensor.type in (
        "int8",
        "uint8",
        "int16",
    )


def tensor_names(model: Model) -> list[str]:
    """Return a unique name for each tensor: its own, with its index where others share it."""
    names, seen = list[str](), set[str]()
    for i, tensor in enumerate(model.tensors):
        name = tensor.name if tensor.name and tensor.name not in seen else f"{tensor.name}#{i}"
        seen.add(name)
        names.append(name)
    return names


def is_dynamic_linear(model: Model, op: Operator) -> bool:
    """Return whether an operator is a linear layer on floats that quantizes its input in each run.

    Of those that LiteRT has, the one of qtool's files: rows with a zero point of their own.
    """
    if op.name != "FULLY_CONNECTED" or len(op.inputs) < 2 or not op.outputs:
        return False
    x, weight, out = (model.tensors[i] for i in (*op.inputs[:2], op.outputs[0]))
    floats = x.type == out.type == "float32"
    plain = not op.options.get("fused_activation_function", 0) and weight.data is not None
    rows = bool(op.options.get("asymmetric_quantize_inputs", False))
    return floats and weight.type == "int8" and weight.quantization is not None and plain and rows
