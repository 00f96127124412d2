"""Orthogonal matrices whose columns mix all channels alike."""

from __future__ import annotations

import math

import torch

SEED = 0


def randomized_hadamard(width: int) -> torch.Tensor:
    """Return an orthogonal matrix with rows of random signs, float64 [width, width].

    A Hadamard matrix of Sylvester's form for the largest power of two in `width`, times the cosine
    transform for the odd part, as there are Hadamard matrices for few other sizes. Rows get random
    signs (Ashkboos et al. 2024, QuaRot), always the same ones.
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
