"""Codes of 2, 4 or 8 bits in bytes, as operators on weights of few bits read them."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 codes of 2, 4 or 8 bits along the last dimension, the first in the low bits."""
    codes = F.pad(codes, (0, -codes.shape[-1] % (8 // bits)))
    packed = codes[..., :: 8 // bits].clone()
    for at in range(1, 8 // bits):
        packed |= codes[..., at :: 8 // bits] << (bits * at)
    return packed


def unpack(packed: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """Return the first `count` codes of each row of `pack`."""
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)[..., :count]
