"""Orthogonal matrices whose columns mix all channels alike."""

from __future__ import annotations

import math

import torch

SEED = 0


def randomized_hadamard(width: int) -> torch.Tensor:
    """Return an orthogonal matrix whose rows have random signs, float64 [width, width].

    It is the Kronecker product of two matrices: Sylvester's Hadamard matrix, for the largest power
    of two that divides the width, and the cosine transform, for the odd factor, since Hadamard
    matrices of other sizes have no simple form. The signs (Ashkboos et al. 2024, QuaRot) are the
    same in each run, so that a conversion can be repeated.

    Args:
        width: number of channels.
    """
    power = width & -width
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < power:
        pair = torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)
        hadamard = torch.cat(pair)
    matrix = torch.kron(hadamard / math.sqrt(power), _cosines(width // power))
    generator = torch.Generator().manual_seed(SEED)
    signs = torch.randint(2, (width, 1), generator=generator).double() * 2 - 1
    return matrix * signs


def _cosines(size: int) -> torch.Tensor:
    """Return the matrix of the orthonormal cosine transform (DCT-II)."""
    at = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (at + 0.5) * at[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix
