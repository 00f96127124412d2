"""Reads the layers of GPTQ: AutoGPTQ's layout, and GPTQModel's second one.

Codes are packed along the inputs, zero points along the outputs; the first layout stores zero
points less one, in as many bits (auto_gptq, qlinear_cuda_old.py; gptqmodel, qlinear/torch.py).
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
    check_shape,
    integer,
    known_bits,
    scales,
    unpacked,
    words,
)

_STORED_LESS = {"gptq": 1, "gptq_v2": 0}
"""Format -> what is subtracted from zero points before they are stored."""


def read_gptq(tensors: Tensors, layer: str, config: Mapping[str, Any]) -> Stored:
    """Return the codes of a layer.

    Args:
        tensors: qweight [inputs x bits / 32, outputs], qzeros [groups, outputs x bits / 32],
            scales [groups, outputs] and, in the order of activations, g_idx [inputs].
        layer: its name.
        config: the `quantization_config`.

    Raises:
        CheckpointError: they contradict the configuration, or have no form in a file.
    """
    if config.get("dynamic"):
        raise CheckpointError(
            "its quantization_config has other settings for some layers (dynamic)"
        )
    form = str(config.get("checkpoint_format") or config.get("format") or "gptq")
    if form not in _STORED_LESS:
        raise CheckpointError(f"its codes have the layout {form}; qtool reads gptq and gptq_v2")
    bits, group = known_bits(config, "bits"), integer(config, "group_size", -1)
    packed = words(tensors, "qweight")
    inputs, outputs = packed.shape[0] * 32 // bits, packed.shape[1]
    group = inputs if group == -1 else group
    if group < 1 or inputs % group:
        raise CheckpointError(
            f"its {inputs} inputs are no multiple of the group size {group}", AGAIN
        )
    count = inputs // group
    scale = scales(tensors, "scales", (count, outputs)).t()
    stored = unpacked(words(tensors, "qzeros"), outputs, bits)
    if len(stored) != count:
        raise CheckpointError(f"it has {len(stored)} rows of zero points for {count} groups", AGAIN)
    zero = (stored.long() + _STORED_LESS[form]) % 2**bits
    groups = check_shape(tensors, "g_idx", (inputs,)) if "g_idx" in tensors else None
    if groups is None and config.get("desc_act") and count > 1:
        raise CheckpointError(
            "its inputs are in the order of activations, and g_idx is missing", AGAIN
        )
    if groups is not None:
        groups = _checked(groups.long(), count, group)
    return Stored(bits, unpacked(packed.t(), inputs, bits), scale, zero.t(), group, groups)


def _checked(groups: torch.Tensor, count: int, group: int) -> torch.Tensor | None:
    """Return the group of each input; None where they follow each other."""
    if bool(((groups < 0) | (groups >= count)).any()):
        raise CheckpointError(f"its g_idx has other groups than 0 to {count - 1}", AGAIN)
    if bool((groups.bincount(minlength=count) != group).any()):
        raise CheckpointError(f"its g_idx has groups of other sizes than {group}", AGAIN)
    plain = torch.arange(count).repeat_interleave(group)
    return None if torch.equal(groups, plain) else groups
