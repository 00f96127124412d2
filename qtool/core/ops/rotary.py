"""Rotary position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.core.graph.torch_ops import operator


@operator(name="rotary")
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, heads, time, features]; cos and sin [batch or 1, time, features / 2] of the angle
    per position and pair of features (i, i + features / 2). The formula of transformers, so that
    the result has the same memory layout."""
    first, second = x.chunk(2, -1)
    cos, sin = (torch.cat((each, each), -1).unsqueeze(1) for each in (cos, sin))
    return x * cos + torch.cat((-second, first), -1) * sin
