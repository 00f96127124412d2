"""Rotary position embeddings."""

from __future__ import annotations

from typing import Any

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator, op
from qtool.core.ops.rotary import rotary_embedding


def _write_plain(x: Any, cos: Any, sin: Any) -> Any:
    heads, last = op.Constant(value_ints=[1]), op.Constant(value_ints=[-1])
    ends = [op.Constant(value_ints=[n]) for n in (0, x.shape[-1] // 2, x.shape[-1])]
    first, second = (op.Slice(x, ends[i], ends[i + 1], last) for i in (0, 1))
    cos, sin = op.Unsqueeze(cos, heads), op.Unsqueeze(sin, heads)
    front = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
    back = op.Add(op.Mul(second, cos), op.Mul(first, sin))
    return op.Concat(front, back, axis=-1)


def _write_contrib(x: Any, cos: Any, sin: Any) -> Any:
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


WRITERS: dict[Any, Writer] = {rotary_embedding: _write_plain}


CONTRIB: dict[Any, Writer] = {rotary_embedding: _write_contrib}
