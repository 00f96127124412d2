"""Causal attention over a KV cache: ONNX Runtime's GroupQueryAttention."""

from __future__ import annotations

from typing import Any

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator, op
from qtool.core.ops.attention import grouped_attention, sequence_lengths, token_positions

_INT32, _INT64 = 6, 7  # of ONNX


def _write_lengths(mask: Any) -> Any:
    one = op.Constant(value_ints=[1])
    last = op.Cast(op.Sub(op.ReduceSum(mask, one, keepdims=0), one), to=_INT32)
    return last, op.Cast(op.Squeeze(op.Shape(mask, start=1, end=2)), to=_INT32)


def _write_positions(last: Any, ids: Any, limit: int) -> Any:
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    new = op.Squeeze(op.Shape(ids, start=1, end=2))
    first = op.Max(op.Sub(op.Cast(last, to=_INT64), op.Sub(new, one)), zero)
    return op.Add(op.Unsqueeze(first, op.Constant(value_ints=[1])), op.Range(zero, new, one))


def _write(
    query: Any,
    key: Any,
    value: Any,
    past_key: Any,
    past_value: Any,
    last: Any,
    total: Any,
    cos: Any,
    sin: Any,
    mask: Any,
    key_scale: Any,
    value_scale: Any,
    heads: int,
    groups: int,
    scale: float,
    window: int,
    softcap: float,
) -> Any:
    write = onnx_operator("GroupQueryAttention", _INPUTS, _ATTRIBUTES, 3)
    inputs = [query, key, value, past_key, past_value, last, total, cos, sin, None, mask]
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups, "scale": scale}
    if cos is not None:
        attributes["do_rotary"] = 1
    if window > 0:
        attributes["local_window_size"] = window
    if softcap:
        attributes["softcap"] = softcap
    if key_scale is not None:
        inputs += [None, key_scale, value_scale]
        attributes |= _INT8_CACHE
    while inputs[-1] is None:
        inputs.pop()
    return write(*inputs, **attributes)


_INT8_CACHE = {
    "kv_cache_bit_width": 8,
    "k_quant_type": "PER_CHANNEL",
    "v_quant_type": "PER_CHANNEL",
}


_INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"),
    *("k_scale", "v_scale"),
)


_ATTRIBUTES = (
    *(("num_heads", "INT"), ("kv_num_heads", "INT"), ("scale", "FLOAT"), ("do_rotary", "INT")),
    *(("local_window_size", "INT"), ("softcap", "FLOAT"), ("kv_cache_bit_width", "INT")),
    *(("k_quant_type", "STRING"), ("v_quant_type", "STRING")),
)


WRITERS: dict[Any, Writer] = {token_positions: _write_positions}


CONTRIB: dict[Any, Writer] = {grouped_attention: _write, sequence_lengths: _write_lengths}
