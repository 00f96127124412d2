"""The codes of one weight, as all readers return them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from qtool.core.errors import CaptureError
from qtool.core.packed_codes import unpack
from qtool.core.remedies import OtherFile

BITS = (2, 4, 8)
"""Bits of codes that an operator has."""
AGAIN = OtherFile("export the checkpoint again, or give the folder of the float model")

Tensors = Mapping[str, torch.Tensor]
"""The tensors of one layer, by the last part of their names."""


class CheckpointError(CaptureError):
    """A layer of a checkpoint that has no form in a file, or contradicts its configuration."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Codes of the weight of a linear layer: real = (code - zero) * scale.

    Attributes:
        bits: 2, 4 or 8.
        codes: counted from 0, uint8 [outputs, inputs].
        scale: float32 [outputs, groups].
        zero: zero points in the shape of `scale`, int64; None: half of the codes.
        group: number of inputs that share a scale.
        groups: group of each input, int64 [inputs]; None: one after the other.
        dynamic: whether the layer computes on int8 inputs.
    """

    bits: int
    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None
    group: int
    groups: torch.Tensor | None = None
    dynamic: bool = False


def integer(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return an integer of a configuration.

    Raises:
        CheckpointError: there is another value.
    """
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"{key} of its quantization_config is {value!r:.40}, no integer")
    return value


def known_bits(config: Mapping[str, Any], key: str) -> int:
    """Return the bits of a configuration.

    Raises:
        CheckpointError: no operator has codes of that many.
    """
    bits = integer(config, key)
    if bits not in BITS:
        raise CheckpointError(f"its weights have {bits} bits, and MatMulNBits has codes of 2, 4, 8")
    return bits


def words(tensors: Tensors, name: str) -> torch.Tensor:
    """Return a matrix of packed int32.

    Raises:
        CheckpointError: it is missing, or another tensor.
    """
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != torch.int32 or tensor.dim() != 2:
        what = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
        raise CheckpointError(f"its {name} is {what}, and not a matrix of packed int32", AGAIN)
    return tensor


def unpacked(packed: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """Return the codes of rows of int32, the first in the lowest bits: uint8 [rows, count].

    Raises:
        CheckpointError: the rows have another length.
    """
    if packed.shape[1] != -(-count * bits // 32):
        raise CheckpointError(
            f"a row of {packed.shape[1]} int32 is not one of {count} codes of {bits} bits", AGAIN
        )
    return unpack(packed.contiguous().view(torch.uint8), count, bits)


def check_shape(tensors: Tensors, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of a layer.

    Raises:
        CheckpointError: it is missing, or has another shape.
    """
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) != shape:
        what = "missing" if tensor is None else f"of the shape {list(tensor.shape)}"
        raise CheckpointError(f"its {name} is {what}, and has to be {list(shape)}", AGAIN)
    return tensor


def scales(tensors: Tensors, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return scales in float32.

    Raises:
        CheckpointError: as for `check_shape`, or they are integers.
    """
    tensor = check_shape(tensors, name, shape)
    if not tensor.is_floating_point():
        raise CheckpointError(f"its {name} is {tensor.dtype}, and scales are floats", AGAIN)
    return tensor.float()
