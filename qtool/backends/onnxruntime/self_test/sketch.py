"""Sketches of tensors, from which the distance between two runs can be estimated.

The sum of a difference with random signs has the energy of the difference as its expected square
(Alon, Matias and Szegedy, "The space complexity of approximating the frequency moments", STOC
1996): eight such sums give it to about half of itself, 2 dB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from math import inf

import numpy as np

from qtool.backends.onnx.self_test_format import Sketch
from qtool.backends.onnxruntime.self_test.inputs import random_words, seed_of
from qtool.core.sqnr import decibels
from qtool.core.types import Array

_PROJECTIONS = 8
_SIGNS = "signs"
_CHUNK = 1 << 15  # elements at once
_MOST = 16  # sketches of a file
_LIMIT_DB, _MARGIN_DB = 20.0, 10.0


def sketch_of(tensor: int, values: Sequence[Array]) -> Sketch:
    """Return the sketch of a tensor over all runs.

    Bit p of word i of the generator seeded with "signs" is the sign of element i in projection p;
    1 is minus. Elements are numbered across the runs. NaN and Inf count as 0.
    """
    count = sum(np.asarray(v).size for v in values)
    mean = sum(float(part.sum()) for _, part in _chunks(values)) / max(1, count)
    energy, sums, seed = 0.0, np.zeros(_PROJECTIONS), seed_of(_SIGNS)
    for start, part in _chunks(values):
        energy += float(np.square(part - mean).sum())
        words = random_words(seed, np.arange(start, start + part.size, dtype=np.uint64))
        low = words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :1]
        minus = np.unpackbits(low, axis=1, count=_PROJECTIONS, bitorder="little")
        sums += part.sum() - 2 * (part @ minus.astype(np.float64))
    rounded = np.array([energy, *sums]).astype(np.float32).tolist()
    return Sketch(tensor, rounded[0], tuple(rounded[1:]))


def _chunks(values: Sequence[Array]) -> Iterator[tuple[int, Array]]:
    """Yield the number of the first element, and finite float64 values that fit into a cache."""
    first = 0
    for value in values:
        flat = np.asarray(value).reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK].astype(np.float64)
            yield first + start, np.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0)
        first += flat.size


def distance_db(expected: Sketch, actual: Sketch) -> float:
    """Return the estimated SQNR of a tensor against the expected one, in dB."""
    pairs = zip(expected.projections, actual.projections, strict=True)
    noise = sum((a - b) ** 2 for a, b in pairs) / _PROJECTIONS
    db = decibels(expected.energy, noise)
    return inf if db is None else db


def sketches(chosen: Sequence[int], runs: Sequence[Sequence[Array]]) -> tuple[Sketch, ...]:
    """Return sketches of the tensors with these indices."""
    return tuple(sketch_of(i, [run[i] for run in runs]) for i in chosen)


def limit_db(one: Sequence[Sketch], other: Sequence[Sketch]) -> float:
    """Return the limit for tensors of which two runs of a file give these sketches."""
    noise = min(distance_db(*pair) for pair in zip(one, other, strict=True))
    return min(_LIMIT_DB, round(noise - _MARGIN_DB, 1))


def spread(numbers: Sequence[int]) -> list[int]:
    """Return at most as many numbers as there are sketches, evenly spaced, with the last."""
    count = min(len(numbers), _MOST)
    return [numbers[len(numbers) - 1 - i * len(numbers) // count] for i in reversed(range(count))]


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
