"""Products of two activations; written by torch.onnx."""

from __future__ import annotations

from functools import partial

import torch

from qtool.ops import count
from qtool.ops.row import Op

__all__ = ["PRODUCTS"]

aten = torch.ops.aten

PRODUCTS = (
    Op(
        key="matmul",
        targets=(aten.matmul.default, aten.bmm.default, aten.mm.default),
        inputs=(0, 1),
        macs=count.product,
    ),
    Op(
        key="matmul",
        targets=(aten.baddbmm.default,),  # what is added to the product comes first
        inputs=(1, 2),
        macs=partial(count.product, second=2),
    ),
    Op(key="einsum", targets=(aten.einsum.default,), inputs=(1,), macs=count.einsum),
    Op(
        key="attention",
        targets=(aten.scaled_dot_product_attention.default,),
        inputs=(0, 1, 2),
        macs=count.attention,
    ),
)
