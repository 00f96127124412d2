"""Embeddings."""

from __future__ import annotations

from typing import Any

import onnx

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator, op
from qtool.core.graph import torch_ops


def _embedding(ids: Any, table: Any) -> Any:
    return op.Gather(table, ids)


def _embedding_codes(ids: Any, codes: Any, scale: Any) -> Any:
    """Dequantizes only the rows that are read; a DequantizeLinear would dequantize the table."""
    rows = op.Cast(op.Gather(codes, ids), to=onnx.TensorProto.FLOAT)
    return op.Mul(rows, op.Unsqueeze(op.Gather(scale, ids), op.Constant(value_ints=[-1])))


def _embedding_nbits(ids: Any, packed: Any, scale: Any, zero_point: Any, bits: int) -> Any:
    """Looks up blocks and joins them, so that a layer can share the tensor of codes as its weight.
    Each zero point has a byte of its own."""
    width = packed.shape[-1]
    attributes = ("bits", "block_size", "gather_axis", "quantize_axis")
    write = onnx_operator(
        "GatherBlockQuantized",
        ("data", "indices", "scales", "zero_points"),
        tuple((attribute, "INT") for attribute in attributes),
    )
    last = op.Constant(value_ints=[-1])
    parameters = [op.Unsqueeze(t, last) for t in (scale, zero_point) if t is not None]
    sizes = {"bits": bits, "block_size": int(width) * 8 // bits}
    rows = write(packed, ids, *parameters, **sizes, gather_axis=0, quantize_axis=2)
    return op.Reshape(rows, op.Constant(value_ints=[*[0] * len(ids.shape), -1]))


WRITERS: dict[Any, Writer] = {
    torch_ops.embedding: _embedding,
    torch_ops.embedding_codes: _embedding_codes,
}


CONTRIB: dict[Any, Writer] = {torch_ops.embedding_nbits: _embedding_nbits}
