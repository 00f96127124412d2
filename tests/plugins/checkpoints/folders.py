"""Quantized checkpoints of a small Llama, in the layouts that their packages document."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.frontends.huggingface.test_causal_decoder import llama

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LAYER = "model.layers.0.self_attn.q_proj"
Weights = dict[str, torch.Tensor]


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [rows, count] in int32, the first in the lowest bits."""
    words = codes.long().unflatten(1, (-1, 32 // bits)) << torch.arange(0, 32, bits)
    return words.sum(2).to(torch.int32).contiguous()


def rounded(
    weight: torch.Tensor, bits: int, group: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [outputs, inputs], scales and zero points [outputs, groups]."""
    blocks = weight.unflatten(1, (-1, group))
    low, high = blocks.amin(2), blocks.amax(2)
    scale = (high - low) / (2**bits - 1)
    zero = torch.full_like(scale, 2 ** (bits - 1)) if symmetric else (-low / scale).round()
    codes = (blocks / scale[..., None] + zero[..., None]).round().clamp(0, 2**bits - 1)
    return codes.flatten(1), scale, zero


def gptq(
    weight: torch.Tensor, bits: int = 4, group: int = 32, less: int = 1, order: bool = False
) -> tuple[Weights, torch.Tensor]:
    """`less`: what is subtracted from zero points; `order`: that of activations."""
    inputs = weight.shape[1]
    at = torch.arange(inputs).flip(0) if order else torch.arange(inputs)
    codes, scale, zero = rounded(weight[:, at], bits, group, symmetric=False)
    zero = zero.clamp(min=less)
    groups = torch.empty(inputs, dtype=torch.int32)
    groups[at] = torch.arange(inputs, dtype=torch.int32) // group
    own = codes[:, at.argsort()]
    real = (own - zero[:, groups.long()]) * scale[:, groups.long()]
    tensors = {
        "qweight": packed(own, bits).t().contiguous(),
        "qzeros": packed(zero.t() - less, bits),
        "scales": scale.t().contiguous(),
        "g_idx": groups,
    }
    return tensors, real


def awq(weight: torch.Tensor, group: int = 32) -> tuple[Weights, torch.Tensor]:
    codes, scale, zero = rounded(weight, 4, group, symmetric=False)

    def eights(rows: torch.Tensor) -> torch.Tensor:
        return packed(rows.unflatten(1, (-1, 8))[..., list(AWQ_ORDER)].flatten(1), 4)

    spread = (t.repeat_interleave(group, 1) for t in (zero, scale))
    real = (codes - next(spread)) * next(spread)
    zeros, scales = eights(zero.t()), scale.t().contiguous()
    return {"qweight": eights(codes.t()), "qzeros": zeros, "scales": scales}, real


def compressed(
    weight: torch.Tensor,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    plain: bool = False,
) -> tuple[Weights, torch.Tensor]:
    """`plain`: int8 in place of packed codes."""
    codes, scale, zero = rounded(weight, bits, group, symmetric)
    spread = (t.repeat_interleave(group, 1) for t in (zero, scale))
    real = (codes - next(spread)) * next(spread)
    tensors = {"weight_scale": scale}
    if plain:
        return {**tensors, "weight": (codes - 128).to(torch.int8)}, real
    tensors |= {"weight_packed": packed(codes, bits), "weight_shape": torch.tensor(weight.shape)}
    if not symmetric:
        tensors["weight_zero_point"] = packed(zero.t(), bits).t().contiguous()
    return tensors, real


def scheme(**weights: Any) -> dict[str, Any]:
    """The configuration of compressed-tensors."""
    inputs = weights.pop("inputs", None)
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    form = "int-quantized" if inputs else "pack-quantized"
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


_LAYERS = ("proj.weight", "w1.weight", "w2.weight", "w3.weight")
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.02}


def write(
    folder: Path, method: Any, config: Mapping[str, Any], model: Any = None, **options: Any
) -> Weights:
    """Write a folder with codes, by default of a Llama; return its dequantized weights by their
    names."""
    model = model or llama(num_hidden_layers=1, **SIZES)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    stored = load_file(file)
    real = dict(stored)
    for name in [n for n in stored if n.endswith(_LAYERS)]:
        tensors, real[name] = method(stored.pop(name), **options)
        stored |= {name.removesuffix("weight") + part: t for part, t in tensors.items()}
    save_file(stored, file)
    configure(folder, config)
    return real


def configure(folder: Path, config: Mapping[str, Any]) -> None:
    described = json.loads((folder / "config.json").read_text())
    text = json.dumps({**described, "quantization_config": config})
    (folder / "config.json").write_text(text)
