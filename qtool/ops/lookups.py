"""Tables whose rows are looked up."""

from __future__ import annotations

from typing import Any

import onnx

from qtool.graph import torch_ops
from qtool.ops.onnx_forms import op
from qtool.ops.row import Op

__all__ = ["LOOKUPS", "WRITERS"]


def _embedding(ids: Any, table: Any) -> Any:
    return op.Gather(table, ids)


def _embedding_codes(ids: Any, codes: Any, scale: Any) -> Any:
    """Only the rows that are read: a DequantizeLinear of the table would take all of it."""
    rows = op.Cast(op.Gather(codes, ids), to=onnx.TensorProto.FLOAT)
    return op.Mul(rows, op.Unsqueeze(op.Gather(scale, ids), op.Constant(value_ints=[-1])))


LOOKUPS = (
    Op(
        key="embedding",
        targets=(torch_ops.embedding,),
        weight=1,
        from_codes=torch_ops.embedding_codes,
        onnx=_embedding,
    ),
)

WRITERS = {torch_ops.embedding_codes: _embedding_codes}
