"""Normalization behind a residual connection."""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.core.graph.torch_ops import operator


@operator()
def skip_rms_norm(x: Tensor, skip: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + skip over the last dimension, and the sum; all [batch, sequence, features]."""
    total = x + skip
    return torch.rms_norm(total, list(weight.shape), weight, eps), total
