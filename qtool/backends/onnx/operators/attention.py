"""Parts of transformers: attention, rotary positions, norms behind a residual, experts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from qtool.backends.onnx.operators.schemas import TorchOperator, Value, Writer, onnx_operator, op
from qtool.core.graph import torch_ops
from qtool.core.ops.attention import (
    grouped_attention,
    rotary_embedding,
    sequence_lengths,
    token_positions,
)
from qtool.core.ops.fused import routed_experts, skip_rms_norm

_INT32, _INT64 = 6, 7  # of ONNX
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
_MOVES_OF_MASKS = {
    "Concat": None,
    "Expand": 1,
    "Identity": 1,
    "Reshape": 1,
    "Slice": 1,
    "Unsqueeze": 1,
}
"""Data movement operators -> number of their inputs that hold values; None: all."""
_EXPERT_INPUTS = (
    *("input", "router_probs", "fc1_experts_weights", "fc1_scales", "fc1_experts_bias"),
    *("fc2_experts_weights", "fc2_scales", "fc2_experts_bias", "fc3_experts_weights"),
    *("fc3_scales", "fc3_experts_bias", "fc1_zero_points", "fc2_zero_points"),
    *("fc3_zero_points", "router_weights"),
)
_EXPERT_ATTRIBUTES = (
    *(("k", "INT"), ("activation_type", "STRING"), ("swiglu_fusion", "INT")),
    *(("activation_alpha", "FLOAT"), ("activation_beta", "FLOAT"), ("block_size", "INT")),
    *(("normalize_routing_weights", "INT"), ("expert_weight_bits", "INT")),
)


def _write_lengths(mask: Value) -> Value:
    one = op.Constant(value_ints=[1])
    last = op.Cast(op.Sub(op.ReduceSum(mask, one, keepdims=0), one), to=_INT32)
    return last, op.Cast(op.Squeeze(op.Shape(mask, start=1, end=2)), to=_INT32)


def _write_positions(last: Value, ids: Value, limit: int) -> Value:
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    new = op.Squeeze(op.Shape(ids, start=1, end=2))
    first = op.Max(op.Sub(op.Cast(last, to=_INT64), op.Sub(new, one)), zero)
    return op.Add(op.Unsqueeze(first, op.Constant(value_ints=[1])), op.Range(zero, new, one))


def _write_grouped(
    query: Value,
    key: Value,
    value: Value,
    past_key: Value,
    past_value: Value,
    last: Value,
    total: Value,
    cos: Value,
    sin: Value,
    mask: Value,
    key_scale: Value,
    value_scale: Value,
    heads: int,
    groups: int,
    scale: float,
    window: int,
    softcap: float,
) -> Value:
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


def _attention(
    query: Value, key: Value, value: Value, attn_mask: Value = None, *options: Value, **named: Any
) -> Value:
    """The form of torch.onnx, with zeros for queries whose keys are all masked, as in torch; the
    softmax alone would return the mean of all values, or NaN."""
    from onnxscript import ir

    if attn_mask is None:
        return _attended(query, key, value, None, *options, **named)
    masked, zero = -math.inf, op.Constant(value_float=0.0)
    if attn_mask.dtype == ir.DataType.BOOL:
        masked = torch.finfo(torch.float32).min
        attn_mask = op.Where(attn_mask, zero, op.Constant(value_float=masked))
    elif _finite(attn_mask):
        return _attended(query, key, value, attn_mask, *options, **named)
    attended = _attended(query, key, value, attn_mask, *options, **named)
    largest = op.ReduceMax(attn_mask, op.Constant(value_ints=[-1]), keepdims=1)
    return op.Where(op.Greater(largest, op.Constant(value_float=masked)), attended, zero)


def _finite(mask: Value) -> bool:
    """Return whether a mask is known to be finite: a constant, or one after data movement."""
    from onnxscript import ir

    stored = ir.convenience.get_const_tensor(mask)
    if stored is not None:
        return bool(np.isfinite(stored.numpy()).all())
    node = mask.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Where":
        return all(map(_finite, node.inputs[1:]))
    return node.op_type in _MOVES_OF_MASKS and all(
        map(_finite, node.inputs[: _MOVES_OF_MASKS[node.op_type]])
    )


def _attended(
    query: Value,
    key: Value,
    value: Value,
    mask: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Scores, softmax, sum. One Transpose of the keys, which ONNX Runtime fuses into the product;
    torch.onnx, which does not know their rank, computes three shapes for it."""
    from onnxscript import ir
    from onnxscript.function_libs.torch_lib.ops.nn import aten_scaled_dot_product_attention as plain

    width = query.shape[3] if query.shape is not None else None
    usual = not is_causal and not enable_gqa and (scale is None or scale > 0)
    if not usual or not isinstance(width, int) or query.dtype != ir.DataType.FLOAT:
        options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return plain(query, key, value, mask, dropout_p, **options)
    root = op.Constant(value_float=math.sqrt(width**-0.5 if scale is None else scale))
    transposed = op.Transpose(key, perm=[0, 1, 3, 2])
    scores = op.MatMul(op.Mul(query, root), op.Mul(transposed, root))
    return op.MatMul(op.Softmax(scores if mask is None else op.Add(scores, mask), axis=-1), value)


def _write_rotary(x: Value, cos: Value, sin: Value) -> Value:
    heads, last = op.Constant(value_ints=[1]), op.Constant(value_ints=[-1])
    ends = [op.Constant(value_ints=[n]) for n in (0, x.shape[-1] // 2, x.shape[-1])]
    first, second = (op.Slice(x, ends[i], ends[i + 1], last) for i in (0, 1))
    cos, sin = op.Unsqueeze(cos, heads), op.Unsqueeze(sin, heads)
    front = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
    back = op.Add(op.Mul(second, cos), op.Mul(first, sin))
    return op.Concat(front, back, axis=-1)


def _write_rotary_contrib(x: Value, cos: Value, sin: Value) -> Value:
    """RotaryEmbedding looks up angles by the position of each token; the table has one row per
    token of this batch."""
    inputs = ("input", "position_ids", "cos_cache", "sin_cache")
    write = onnx_operator("RotaryEmbedding", inputs)
    if cos.shape[0] == 1:
        positions = op.Constant(value_ints=[0])  # all samples begin at the first row
    else:
        sizes = op.Shape(cos, end=2)
        count = op.ReduceProd(sizes, keepdims=0)
        first, step = op.Constant(value_int=0), op.Constant(value_int=1)
        positions = op.Reshape(op.Range(first, count, step), sizes)
    rows = op.Constant(value_ints=[-1, cos.shape[-1]])
    return write(x, positions, op.Reshape(cos, rows), op.Reshape(sin, rows))


def _write_skip_norm(x: Value, skip: Value, weight: Value, eps: float) -> Value:
    name, inputs = "SkipSimplifiedLayerNormalization", ("input", "skip", "gamma")
    write = onnx_operator(name, inputs, (("epsilon", "FLOAT"),), 4)
    normalized, _, _, total = write(x, skip, weight, epsilon=eps)
    return normalized, total


def _write_expert_linear(x: Value, weight: Value, ids: Value, experts: int) -> Value:
    sizes = op.Constant(value_ints=[experts, -1, int(weight.shape[1])])
    last = op.Constant(value_ints=[-1])
    matrices = op.Gather(op.Reshape(weight, sizes), ids)
    return op.Squeeze(op.MatMul(matrices, op.Unsqueeze(x, last)), last)


def _write_expert_nbits(
    x: Value, packed: Value, scale: Value, zero_point: Value, ids: Value, experts: int, bits: int
) -> Value:
    """Write all experts on all rows, and choose: of a block that has one layer of a mixture."""
    outputs = int(packed.shape[0]) // experts
    attributes = tuple((name, "INT") for name in ("K", "N", "bits", "block_size"))
    product = onnx_operator("MatMulNBits", ("A", "B", "scales", "zero_points"), attributes)
    block = int(packed.shape[2]) * 8 // bits
    sizes = {"K": int(x.shape[-1]), "N": outputs, "bits": bits, "block_size": block}
    last, result = op.Constant(value_ints=[-1]), None
    for expert in range(experts):
        rows = [op.Constant(value_ints=[at * outputs]) for at in (expert, expert + 1)]
        stored = [None if t is None else op.Slice(t, *rows) for t in (packed, scale, zero_point)]
        own = product(x, *stored, **sizes)
        chosen = op.Unsqueeze(op.Equal(ids, op.Constant(value_int=expert)), last)
        result = own if result is None else op.Where(chosen, own, result)
    return result


def _write_experts(
    x: Value,
    chosen: Value,
    shares: Value,
    up: Value,
    up_scale: Value,
    up_zero: Value,
    down: Value,
    down_scale: Value,
    down_zero: Value,
    bits: int,
) -> Value:
    """The kernel selects the experts of largest probability; those of the others are 0 here, so
    that routing of any kind is that of the model.

    No accuracy level is written: versions before 1.31, and those in browsers, refuse the attribute.
    Without it 4-bit weights are multiplied in float."""
    experts, features = int(up.shape[0]), int(x.shape[-1])
    tokens = op.Shape(x, start=0, end=1)
    sizes = op.Concat(tokens, op.Constant(value_ints=[experts]), axis=0)
    zeros = op.ConstantOfShape(sizes)
    probabilities = op.ScatterElements(zeros, chosen, shares, axis=1)
    inputs = [x, probabilities, up, up_scale, None, down, down_scale, *[None] * 4]
    inputs += [up_zero, down_zero, None, probabilities]
    options = {
        "k": int(chosen.shape[1]),
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "normalize_routing_weights": 0,
        "expert_weight_bits": bits,
        "block_size": features // int(up_scale.shape[2]),
    }
    return onnx_operator("QMoE", _EXPERT_INPUTS, _EXPERT_ATTRIBUTES)(*inputs, **options)


WRITERS: dict[TorchOperator, Writer] = {
    token_positions: _write_positions,
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    rotary_embedding: _write_rotary,
    torch_ops.expert_linear: _write_expert_linear,
}

CONTRIB: dict[TorchOperator, Writer] = {
    grouped_attention: _write_grouped,
    sequence_lengths: _write_lengths,
    rotary_embedding: _write_rotary_contrib,
    skip_rms_norm: _write_skip_norm,
    routed_experts: _write_experts,
    torch_ops.expert_nbits: _write_expert_nbits,
}
