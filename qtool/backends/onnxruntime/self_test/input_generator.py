"""Inputs that are identical on every machine: integers from a fixed generator, times a scale.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), computed at any index of its sequence. It is implemented here, so that no
library version changes it. docs/numerics.md describes it for other programs.
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np

from qtool.backends.onnx.self_test_format import InputSpec
from qtool.core.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BLOCKS = (1, 2, 4, 8)
"""Sizes of the blocks of equal values in sample 0, 1, 2, 3, 4 (= 0) and so on."""


def random_words(seed: int, index: Array) -> Array:
    """Return 64 random bits for each index of the sequence of a seed; uint64, shape of `index`."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        z = np.uint64(seed) + (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        bits: Array = z ^ (z >> np.uint64(31))
    return bits


def seed_of(name: str) -> int:
    """Return the first 8 bytes of the SHA-256 of a name, little-endian."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def generate(name: str, spec: InputSpec, dtype: np.dtype, run: int) -> Array:
    """Return one input of one run.

    Each value is `scale * (low + word % (high - low + 1))`, computed in float64 and cast to
    `dtype`. Sample i of run r reads the words from (r * samples + i) * (elements of a sample) on.
    In a floating-point input with 3 axes or more, the last two axes consist of blocks of 1, 2, 4 or
    8 equal values in turn: some channels respond to larger patterns only.

    Args:
        name: name of the input; seeds the generator.
        spec: shape and range of the input.
        dtype: dtype of the input.
        run: number of the run, from 0.
    """
    count, rest = (spec.shape[0], spec.shape[1:]) if spec.shape else (1, ())
    index = np.arange(prod(rest), dtype=np.uint64).reshape(rest)
    smooth = dtype.kind == "f" and len(rest) >= 2
    seed, span = seed_of(name), np.uint64(spec.high - spec.low + 1)
    samples = []
    for sample in range(run * count, (run + 1) * count):
        places = _blocks(index, _BLOCKS[sample % len(_BLOCKS)]) if smooth else index
        start = np.uint64(sample * index.size)
        codes = (random_words(seed, places + start) % span).astype(np.int64) + spec.low
        samples.append(codes)
    codes = np.stack(samples) if count else np.zeros(spec.shape, np.int64)
    values = codes * np.float64(spec.scale) if dtype.kind == "f" else codes
    array: Array = values.astype(dtype).reshape(spec.shape)
    return array


def _blocks(index: Array, size: int) -> Array:
    """Return for each index that of the first element of its block."""
    rows, columns = (np.arange(n) // size * size for n in index.shape[-2:])
    first: Array = index[..., rows, :][..., columns]
    return first
