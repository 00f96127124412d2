"""What the codes of tensors mean, and how tensors are named."""

from __future__ import annotations

from qtool.backends.tflite.file.model import Model, Quantization, Tensor
from qtool.core.affine import Affine
from qtool.core.errors import KernelError
from qtool.core.types import INT8, INT16, INT32, UINT8

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
