"""Normalization behind a residual connection."""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.core.graph.torch_ops import define


def _skip_rms_norm(x: Tensor, skip: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + skip
    return torch.rms_norm(total, list(weight.shape), weight, eps), total


skip_rms_norm = define(
    "skip_rms_norm(Tensor x, Tensor skip, Tensor weight, float eps) -> (Tensor, Tensor)",
    _skip_rms_norm,
)
"""RMSNorm of x + skip over the last dimension, and the sum; all [batch, sequence, features]."""
