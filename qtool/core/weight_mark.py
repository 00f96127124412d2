"""A mark of weights: equal for the same values in any order, shape and place of a file."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qtool.core.types import Array

_LARGEST = 8  # arrays that are marked: small ones may be folded into others
_LEAST = 64  # elements of an array that tells models apart
_CHUNK = 1 << 20  # elements
_FACTOR = 0x9E3779B97F4A7C15  # the golden ratio in 64 bits, as in Fibonacci hashing


def weight_mark(arrays: Iterable[Array]) -> str:
    """Return 64 bits, as hex digits, of the values of the largest float arrays, as float32; "" of
    arrays that have none."""
    marks = {(a.size, _mark(a)) for a in arrays if a.dtype.kind == "f" and a.size >= _LEAST}
    total = sum((2 * size + 1) * mark for size, mark in sorted(marks)[-_LARGEST:])
    return f"{total % (1 << 64):016x}" if marks else ""


def _mark(array: Array) -> int:
    """Return the sums of the bits of all elements and of their squares as one number."""
    bits, total = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32), 0
    for start in range(0, len(bits), _CHUNK):
        some = bits[start : start + _CHUNK].astype(np.uint64)
        total += int(some.sum()) * _FACTOR + int((some * some).sum())
    return total % (1 << 64)
