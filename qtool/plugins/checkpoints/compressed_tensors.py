"""Reads the layers of compressed-tensors: packed codes of weights, and int8 weights and inputs.

Codes are packed along the inputs, zero points along the outputs, both counted from the lowest code
(compressed_tensors, compressors/pack_quantized; naive_quantized).
"""

from __future__ import annotations

import re
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

_PACKED, _INT8 = "pack-quantized", "int-quantized"
_REGEX, _CLASS = "re:", "Linear"


def read_compressed(tensors: Tensors, layer: str, config: Mapping[str, Any]) -> Stored:
    """Return the codes of a layer.

    Args:
        tensors: weight_packed [outputs, inputs x bits / 32] with weight_shape, or an int8 weight;
            weight_scale [outputs, groups], weight_zero_point and weight_g_idx [inputs].
        layer: its name.
        config: the `quantization_config`.

    Raises:
        CheckpointError: they contradict the configuration, or have no form in a file.
    """
    scheme = _scheme(layer, config)
    weights, inputs = scheme.get("weights"), scheme.get("input_activations")
    if not isinstance(weights, dict) or weights.get("type", "int") != "int":
        raise CheckpointError("its weights are no integers; qtool reads pack- and int-quantized")
    if config.get("sparsity_config"):
        raise CheckpointError("its weights are sparse, which no operator reads")
    bits, symmetric = known_bits(weights, "num_bits"), bool(weights.get("symmetric", True))
    dynamic = _int8_inputs(inputs, bits)
    codes = _codes(tensors, bits)
    outputs, width = codes.shape
    group = _group(weights, width)
    count = -(-width // group)
    if "weight_g_idx" in tensors:
        raise CheckpointError("its inputs are in the order of activations (weight_g_idx)")
    per_tensor = weights.get("strategy") == "tensor"
    shape = (1,) if per_tensor else (outputs, count)
    scale = scales(tensors, "weight_scale", shape).expand(outputs, count)
    zero = None if symmetric else _zero(tensors, bits, outputs, count)
    return Stored(bits, codes, scale, zero, group, dynamic=dynamic)


def _scheme(layer: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the group of the configuration for a layer: by its name, then by its class."""
    groups = config.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    named = [s for s in schemes if isinstance(s, dict)]
    for fits in (lambda t: _matches(t, layer), lambda t: t == _CLASS):
        for scheme in named:
            if any(fits(str(target)) for target in scheme.get("targets") or ()):
                form = scheme.get("format") or config.get("format")
                if form not in (_PACKED, _INT8):
                    raise CheckpointError(
                        f"its weights have the format {form}; qtool reads {_PACKED} and {_INT8}"
                    )
                return scheme
    raise CheckpointError("no group of its quantization_config is for this layer", AGAIN)


def _matches(target: str, layer: str) -> bool:
    if not target.startswith(_REGEX):
        return target == layer
    try:
        return re.match(target.removeprefix(_REGEX), layer) is not None
    except re.error:
        return False


def _int8_inputs(inputs: Any, bits: int) -> bool:
    """Return whether the layer computes on int8 inputs."""
    if inputs is None:
        return False
    if not isinstance(inputs, dict) or (inputs.get("type", "int"), bits) != ("int", 8):
        raise CheckpointError("its inputs are no integers, or its weights no int8 ones")
    if inputs.get("num_bits") != 8:
        raise CheckpointError(f"its inputs have {inputs.get('num_bits')} bits, and a kernel has 8")
    return True


def _codes(tensors: Tensors, bits: int) -> torch.Tensor:
    """Return the codes counted from 0, uint8 [outputs, inputs]."""
    plain = tensors.get("weight")
    if plain is not None and plain.dtype == torch.int8 and plain.dim() == 2 and bits == 8:
        return (plain.to(torch.int16) + 128).to(torch.uint8)
    packed, shape = words(tensors, "weight_packed"), tensors.get("weight_shape")
    if shape is None or shape.numel() != 2 or int(shape[0]) != len(packed):
        raise CheckpointError("its weight_shape is not that of weight_packed", AGAIN)
    return unpacked(packed, int(shape[1]), bits)


def _group(weights: Mapping[str, Any], width: int) -> int:
    """Return the number of inputs that share a scale. width: number of inputs."""
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "channel")
    if strategy in ("channel", "tensor"):
        return width
    if strategy != "group":
        raise CheckpointError(f"its weights have scales by {strategy}; qtool reads group, channel")
    group = integer(weights, "group_size")
    if group < 1 or width % group:
        raise CheckpointError(
            f"its {width} inputs are no multiple of the group size {group}", AGAIN
        )
    return group


def _zero(tensors: Tensors, bits: int, outputs: int, count: int) -> torch.Tensor:
    """Return zero points counted from 0, int64 [outputs, count]."""
    stored = tensors.get("weight_zero_point")
    if stored is not None and stored.dtype == torch.int32:
        packed = words(tensors, "weight_zero_point").t()
        if len(packed) != count:
            raise CheckpointError(f"it has zero points of {len(packed)} groups, not {count}", AGAIN)
        return unpacked(packed, outputs, bits).t().to(torch.int64)
    plain = check_shape(tensors, "weight_zero_point", (outputs, count))
    return plain.to(torch.int64).add(2 ** (bits - 1))
