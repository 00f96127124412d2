"""Products of two activations; torch.onnx writes them, except the mask of an attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from qtool.backends.onnx.operators.schemas import Writer, op


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *options: Any, **named: Any
) -> Any:
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


_MOVES = {"Concat": None, "Expand": 1, "Identity": 1, "Reshape": 1, "Slice": 1, "Unsqueeze": 1}
"""Data movement operators -> number of their inputs that hold values; None: all."""


def _finite(mask: Any) -> bool:
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
    return node.op_type in _MOVES and all(map(_finite, node.inputs[: _MOVES[node.op_type]]))


def _attended(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
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


WRITERS: dict[Any, Writer] = {torch.ops.aten.scaled_dot_product_attention.default: _attention}
