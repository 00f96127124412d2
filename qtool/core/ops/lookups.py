"""Embeddings."""

from __future__ import annotations

from qtool.core.graph import torch_ops
from qtool.core.ops.row import Op

LOOKUPS = (
    Op(
        key="embedding",
        targets=(torch_ops.embedding,),
        weight=1,
        from_codes=torch_ops.embedding_codes,
        from_blocks=torch_ops.embedding_nbits,
    ),
)
