"""Products of two activations."""

from __future__ import annotations

from functools import partial

import torch

from qtool.core.ops import mac_counts
from qtool.core.ops.row import Op

aten = torch.ops.aten


PRODUCTS = (
    Op(
        key="matmul",
        targets=(aten.matmul.default, aten.bmm.default, aten.mm.default),
        inputs=(0, 1),
        macs=mac_counts.product,
    ),
    Op(
        key="matmul",
        targets=(aten.baddbmm.default,),  # the first argument is added to the product
        inputs=(1, 2),
        macs=partial(mac_counts.product, second=2),
    ),
    Op(key="einsum", targets=(aten.einsum.default,), inputs=(1,), macs=mac_counts.einsum),
    Op(
        key="attention",
        targets=(aten.scaled_dot_product_attention.default,),
        inputs=(0, 1, 2),
        macs=mac_counts.attention,
    ),
)
