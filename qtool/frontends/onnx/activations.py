"""ONNX activations as calls of torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from qtool.frontends.onnx.node_calls import Array, NodeCall


def softmax(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
        if call.opset >= 13:
            return function(x, call.get("axis", -1))
        axis = call.get("axis", 1) % x.dim()  # before opset 13 over this and all later dimensions
        return function(x.flatten(axis), axis).reshape(x.shape)

    return apply


def clip(
    call: NodeCall, x: torch.Tensor, low: Array | None = None, high: Array | None = None
) -> torch.Tensor:
    low = call.get("min") if low is None else low
    high = call.get("max") if high is None else high
    kind = float if x.is_floating_point() else int
    bounds = [None if b is None else kind(b) for b in (low, high)]
    if any(b is not None and math.isnan(b) for b in bounds):
        raise call.unsupported("a bound that is NaN")
    if bounds == [None, None]:
        return x
    return torch.relu(x) if bounds == [0.0, None] else torch.clamp(x, *bounds)


def gelu(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate=call.get("approximate", "none"))


def quick_gelu(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    alpha = call.get("alpha", 1.702)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def swish(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    alpha = call.get("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def hard_sigmoid(call: NodeCall, x: torch.Tensor) -> torch.Tensor:
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def prelu(call: NodeCall, x: torch.Tensor, slope: Any) -> torch.Tensor:
    """Apply F.prelu to one slope or one per channel; broadcast slopes of any other shape."""
    if slope.numel() == 1:
        return F.prelu(x, slope.reshape(-1))
    sizes = [1] * (x.dim() - slope.dim()) + list(slope.shape)
    if x.dim() > 1 and sizes[1] == slope.numel() == x.shape[1]:
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)
