"""Reads the layers of AutoAWQ in its GEMM layout (awq, modules/linear/gemm.py).

Codes and zero points are packed along the outputs; the eight of a word are in the order that its
CUDA kernel unpacks them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from qtool.plugins.checkpoints.record import (
    AGAIN,
    CheckpointError,
    Stored,
    Tensors,
    integer,
    known_bits,
    scales,
    unpacked,
    words,
)

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place in a word of each of its eight outputs."""


def read_awq(tensors: Tensors, layer: str, config: Mapping[str, Any]) -> Stored:
    """Return the codes of a layer.

    Args:
        tensors: qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups,
            outputs].
        layer: its name.
        config: the `quantization_config`.

    Raises:
        CheckpointError: they contradict the configuration, or have no form in a file.
    """
    version = str(config.get("version", "gemm")).lower()
    if version != "gemm":
        raise CheckpointError(f"its codes have the layout {version}; qtool reads gemm")
    bits = known_bits(config, "bits" if "bits" in config else "w_bit")
    if bits != 4:
        raise CheckpointError(f"its weights have {bits} bits, and the layout gemm has 4")
    group = integer(config, "group_size" if "group_size" in config else "q_group_size", 128)
    packed = words(tensors, "qweight")
    inputs, outputs = packed.shape[0], packed.shape[1] * 8
    group = inputs if group == -1 else group
    if group < 1 or inputs % group:
        raise CheckpointError(
            f"its {inputs} inputs are no multiple of the group size {group}", AGAIN
        )
    scale = scales(tensors, "scales", (inputs // group, outputs)).t()
    zero = None
    if config.get("zero_point", True):
        stored = words(tensors, "qzeros")
        if len(stored) != inputs // group:
            raise CheckpointError(
                f"it has {len(stored)} rows of zero points for {inputs // group} groups", AGAIN
            )
        zero = _in_order(stored, outputs).long().t()
    return Stored(bits, _in_order(packed, outputs).t(), scale, zero, group)


def _in_order(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """Return the codes of rows, uint8 [rows, outputs]."""
    eights = unpacked(packed, outputs, 4).reshape(len(packed), -1, 8)
    return eights[..., list(_PLACES)].flatten(1)
