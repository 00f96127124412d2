"""Digests of the tensors that a self-test compares to the last bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from qtool.core.types import Array

_DIGITS = 16


def exact_digests(kinds: str, runs: Sequence[Sequence[Array]], groups: int) -> tuple[str, ...]:
    """Return digests of groups of consecutive exact tensors.

    Args:
        kinds: see `SelfTest`.
        runs: the observed tensors of each run.
        groups: number of digests; if the division is not even, the first ones have one tensor
            more.
    """
    exact = [i for i, kind in enumerate(kinds) if kind == "e"]
    parts = np.array_split(np.array(exact, np.int64), groups) if groups else []
    return tuple(_digest([run[i] for i in part.tolist() for run in runs]) for part in parts)


def _digest(arrays: Sequence[Array]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:_DIGITS]
