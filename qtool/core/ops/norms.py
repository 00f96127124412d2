"""Normalization behind a residual connection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qtool.core.graph.torch_ops import define
from qtool.core.ops.onnx_forms import onnx_operator


def _skip_rms_norm(x: Tensor, skip: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + skip
    return torch.rms_norm(total, list(weight.shape), weight, eps), total


skip_rms_norm = define(
    "skip_rms_norm(Tensor x, Tensor skip, Tensor weight, float eps) -> (Tensor, Tensor)",
    _skip_rms_norm,
)
"""RMSNorm of x + skip over the last dimension, and the sum; all [batch, sequence, features]."""


def _write(x: Any, skip: Any, weight: Any, eps: float) -> Any:
    name, inputs = "SkipSimplifiedLayerNormalization", ("input", "skip", "gamma")
    write = onnx_operator("com.microsoft", name, inputs, 4, (("epsilon", "FLOAT"),))
    normalized, _, _, total = write(x, skip, weight, epsilon=eps)
    return normalized, total


CONTRIB = {skip_rms_norm: _write}
