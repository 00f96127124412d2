"""Attention over an int8 KV cache, as ONNX Runtime's GroupQueryAttention computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.core.graph.torch_ops import define
from qtool.core.ops.onnx_forms import onnx_operator, op
from qtool.core.types import INT8


def _cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    key_scale: Tensor,
    value_scale: Tensor,
    mask: Tensor,
    heads: int,
    groups: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    new = (key, value), (past_key, past_value), (key_scale, value_scale)
    present, real = [], []
    for current, past, step in zip(*new, strict=True):
        step = step.unflatten(0, (groups, 1, -1))
        codes = INT8.codes(_split_heads(current, groups), step, step.new_zeros(())).to(torch.int8)
        present.append(torch.cat([past, codes], 2))
        real.append((present[-1].to(torch.float32) * step).repeat_interleave(heads // groups, 1))
    length, total = query.shape[1], mask.shape[3]
    positions = torch.arange(total, device=mask.device)
    later = positions[None] > positions[total - length :, None]
    causal_mask = mask.masked_fill(later, float("-inf"))
    attended = F.scaled_dot_product_attention(
        _split_heads(query, heads), real[0], real[1], causal_mask, scale=scale
    )
    return attended.transpose(1, 2).flatten(2), present[0], present[1]


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, sequence, heads x width] -> [batch, heads, sequence, width]."""
    by_head: Tensor = x.unflatten(2, (heads, -1)).transpose(1, 2)
    return by_head


cached_attention = define(
    "cached_attention(Tensor query, Tensor key, Tensor value, Tensor past_key, Tensor past_value,"
    " Tensor key_scale, Tensor value_scale, Tensor mask, int heads, int groups, float scale)"
    " -> (Tensor, Tensor, Tensor)",
    _cached_attention,
)
"""Causal attention over an int8 KV cache.

query [batch, sequence, heads x width], key and value [batch, sequence, groups x width]; past key
and value int8 [batch, groups, past, width], scales per channel [groups x width]; mask [batch, 1,
sequence, total], added before the softmax. Returns [batch, sequence, heads x width], and keys and
values of all tokens in int8."""


def _write(
    query: Any,
    key: Any,
    value: Any,
    past_key: Any,
    past_value: Any,
    key_scale: Any,
    value_scale: Any,
    mask: Any,
    heads: int,
    groups: int,
    scale: float,
) -> Any:
    write = onnx_operator("com.microsoft", "GroupQueryAttention", _INPUTS, 3, _ATTRIBUTES)
    total = op.Cast(op.Shape(mask, start=3, end=4), to=6)  # 6: int32
    last = op.Sub(total, op.Cast(op.Constant(value_ints=[1]), to=6))
    lengths = op.Expand(last, op.Shape(query, start=0, end=1))
    first = (query, key, value, past_key, past_value, lengths, op.Squeeze(total))
    return write(
        *(*first, None, None, None, mask, None, key_scale, value_scale),
        num_heads=heads,
        kv_num_heads=groups,
        scale=scale,
        kv_cache_bit_width=8,
        k_quant_type="PER_CHANNEL",
        v_quant_type="PER_CHANNEL",
    )


_INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
    *("k_scale", "v_scale"),
)
_ATTRIBUTES = (
    *(("num_heads", "INT"), ("kv_num_heads", "INT"), ("scale", "FLOAT")),
    *(("kv_cache_bit_width", "INT"), ("k_quant_type", "STRING"), ("v_quant_type", "STRING")),
)

CONTRIB = {cached_attention: _write}
