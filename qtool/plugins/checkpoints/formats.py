"""The layers of the three formats of quantized checkpoints."""

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

_STORED_LESS = {"gptq": 1, "gptq_v2": 0}
"""Format -> what is subtracted from zero points before they are stored."""
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place in a word of each of its eight outputs."""
_PACKED, _INT8 = "pack-quantized", "int-quantized"
_REGEX, _CLASS = "re:", "Linear"


# Reads the layers of GPTQ: AutoGPTQ's layout, and GPTQModel's second one.
#
# Codes are packed along the inputs, zero points along the outputs; the first layout stores zero
# points less one, in as many bits (auto_gptq, qlinear_cuda_old.py; gptqmodel, qlinear/torch.py).


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


# Reads the layers of AutoAWQ in its GEMM layout (awq, modules/linear/gemm.py).
#
# Codes and zero points are packed along the outputs; the eight of a word are in the order that its
# CUDA kernel unpacks them in.


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


# Reads the layers of compressed-tensors: packed codes of weights, and int8 weights and inputs.
#
# Codes are packed along the inputs, zero points along the outputs, both counted from the lowest
# code (compressed_tensors, compressors/pack_quantized; naive_quantized).


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
