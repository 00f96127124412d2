"""Tables whose rows are looked up."""

from __future__ import annotations

from typing import Any

import onnx

from qtool.core.graph import torch_ops
from qtool.core.ops.onnx_forms import contrib, op
from qtool.core.ops.row import Op


def _embedding(ids: Any, table: Any) -> Any:
    return op.Gather(table, ids)


def _embedding_codes(ids: Any, codes: Any, scale: Any) -> Any:
    """Only the rows that are read: a DequantizeLinear of the table would take all of it."""
    rows = op.Cast(op.Gather(codes, ids), to=onnx.TensorProto.FLOAT)
    return op.Mul(rows, op.Unsqueeze(op.Gather(scale, ids), op.Constant(value_ints=[-1])))


def _embedding_nbits(ids: Any, packed: Any, scale: Any, zero_point: Any, bits: int) -> Any:
    """The blocks of a row by themselves, which are then joined: so one tensor of codes serves the
    layer that has it as its weight, too. Zero points are in bytes of their own."""
    width = packed.shape[-1]
    write = contrib(
        "GatherBlockQuantized",
        ("data:B", "indices:I", "scales:T", "zero_points:B?"),
        ("bits", "block_size", "gather_axis", "quantize_axis"),
        ("T:float", "B:uint8", "I:int64"),
        onnx.defs.OpSchema.AttrType.INT,
    )
    last = op.Constant(value_ints=[-1])
    of_each = [op.Unsqueeze(t, last) for t in (scale, zero_point) if t is not None]
    sizes = {"bits": bits, "block_size": int(width) * 8 // bits}
    found = write(packed, ids, *of_each, **sizes, gather_axis=0, quantize_axis=2)
    return op.Reshape(found, op.Constant(value_ints=[*[0] * len(ids.shape), -1]))


LOOKUPS = (
    Op(
        key="embedding",
        targets=(torch_ops.embedding,),
        weight=1,
        from_codes=torch_ops.embedding_codes,
        from_blocks=torch_ops.embedding_nbits,
        onnx=_embedding,
    ),
)

WRITERS = {torch_ops.embedding_codes: _embedding_codes}
CONTRIB = {torch_ops.embedding_nbits: _embedding_nbits}
