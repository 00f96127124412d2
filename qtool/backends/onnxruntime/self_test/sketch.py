"""Sketches of tensors, from which the distance between two runs can be estimated.

The sum of a difference with random signs has the energy of the difference as its expected square
(Alon, Matias and Szegedy, "The space complexity of approximating the frequency moments", STOC
1996): eight such sums give it to about half of itself, 2 dB.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from qtool.backends.onnx.self_test_format import Sketch
from qtool.backends.onnxruntime.self_test.input_generator import random_words, seed_of
from qtool.core.sqnr import decibels
from qtool.core.types import Array

_PROJECTIONS = 8
_SIGNS = "signs"
_CHUNK = 1 << 20  # elements at once


def sketch_of(tensor: int, values: Sequence[Array]) -> Sketch:
    """Return the sketch of a tensor over all runs.

    Bit p of word i of the generator seeded with "signs" is the sign of element i in projection p;
    1 is minus. Elements are numbered across the runs. NaN and Inf count as 0.
    """
    flat = np.concatenate([np.asarray(v, np.float64).reshape(-1) for v in values])
    flat = np.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
    energy = float(np.square(flat - flat.mean()).sum()) if flat.size else 0.0
    sums, seed = np.zeros(_PROJECTIONS), seed_of(_SIGNS)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        bits = random_words(seed, np.arange(start, start + part.size, dtype=np.uint64))
        for p in range(_PROJECTIONS):
            minus = (bits >> np.uint64(p)) & np.uint64(1)
            sums[p] += float(np.where(minus, -part, part).sum())
    rounded = np.array([energy, *sums]).astype(np.float32).tolist()
    return Sketch(tensor, rounded[0], tuple(rounded[1:]))


def distance_db(expected: Sketch, actual: Sketch) -> float:
    """Return the estimated SQNR of a tensor against the expected one, in dB."""
    pairs = zip(expected.projections, actual.projections, strict=True)
    noise = sum((a - b) ** 2 for a, b in pairs) / _PROJECTIONS
    db = decibels(expected.energy, noise)
    return inf if db is None else db
