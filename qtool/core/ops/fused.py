"""Operators of qtool that files write as one node: experts, and a norm of a sum."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qtool.core.graph.torch_ops import expert_nbits, operator

# A mixture of experts, as ONNX Runtime's QMoE computes it.


def _like_input(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


@operator(fake=_like_input)
def routed_experts(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    up: Tensor,
    up_scale: Tensor,
    up_zero: Tensor | None,
    down: Tensor,
    down_scale: Tensor,
    down_zero: Tensor | None,
    bits: int,
) -> Tensor:
    """Return the sum of shares x down(silu(gate(x)) * up(x)) over the experts of each token.

    x [tokens, features]; `chosen`, int64, and `shares`, float, [tokens, experts per token]. Codes
    [experts, outputs, bytes], scales [experts, outputs, blocks] and zero points [experts, outputs,
    bytes]; without zero points codes are around the middle of the range. Rows of `up` are those of
    gate and up in turn.
    """
    experts, count = len(up), chosen.shape[1]
    ids, rows = chosen.reshape(-1), x.repeat_interleave(count, 0)
    for packed, scale, zero in ((up, up_scale, up_zero), (down, down_scale, down_zero)):
        if packed is down:
            rows = F.silu(rows[:, ::2]) * rows[:, 1::2]
        blocks = packed.reshape(-1, scale.shape[2], packed.shape[2] // scale.shape[2])
        flat = scale.flatten(0, 1), None if zero is None else zero.flatten(0, 1)
        rows = expert_nbits(rows, blocks, *flat, ids, experts, bits)
    weighted: Tensor = (rows * shares.reshape(-1, 1)).unflatten(0, (-1, count))
    return weighted.sum(1)


# Normalization behind a residual connection.


@operator()
def skip_rms_norm(x: Tensor, skip: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + skip over the last dimension, and the sum; all [batch, sequence, features]."""
    total = x + skip
    return torch.rms_norm(total, list(weight.shape), weight, eps), total
