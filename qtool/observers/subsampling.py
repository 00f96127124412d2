"""The elements of large samples that a histogram counts: every n-th run of neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from math import gcd, prod

import torch

from qtool.observers.statistic import CHUNK, chunks

_MIN_COUNTED = 1024  # elements counted of a large sample, at least
_TARGET_STRIDE = 4  # about every 4th run counts: a few large samples need their tails, too
_RUN = 16  # consecutive elements counted together: a cache line is read at once


@lru_cache
def _stride(sizes: tuple[int, ...]) -> int:
    """Return n, where every n-th run of a sample of these sizes is counted."""
    smallest = min(prod(sizes) // _MIN_COUNTED, _TARGET_STRIDE)
    if smallest < 2:
        return 1
    return next(k for k in count(smallest) if all(gcd(k, size) == 1 for size in sizes))


def chunks_and_stride(x: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield (chunk, n) of a batch, where every n-th run of the chunk is counted."""
    stride = _stride(tuple(x.shape[1:]))
    if stride == 1:
        return ((p, 1) for _, p in chunks(x, None, 1))
    return ((p, stride) for p in _cache_sized(_samples(x), stride))


def _samples(x: torch.Tensor) -> torch.Tensor:
    """Return [samples, elements] in the order of memory; a view if the batch is dense."""
    if x.is_contiguous():
        return x.flatten(1)
    order = sorted(range(1, x.dim()), key=lambda d: (-x.stride()[d], d))
    return x.permute(0, *order).flatten(1)


def _cache_sized(x: torch.Tensor, stride: int) -> Iterator[torch.Tensor]:
    """Yield parts of a matrix that stay in the cache: rows, or columns of a row in multiples of
    `stride` runs."""
    count = max(1, CHUNK // x.shape[1])
    width = max(1, CHUNK // (stride * _RUN)) * stride * _RUN
    for rows in x.split(count) if len(x) > count else (x,):
        yield from rows.split(width, 1) if x.shape[1] > CHUNK else (rows,)


def counted_elements(chunk: torch.Tensor, stride: int) -> torch.Tensor:
    """Return every `stride`-th run of each row of a chunk, in float32; all of it for stride 1."""
    if stride == 1:
        return chunk
    whole = chunk.shape[1] // _RUN * _RUN
    runs: torch.Tensor = chunk[:, :whole].unflatten(1, (-1, _RUN))
    return runs[:, ::stride].float()
