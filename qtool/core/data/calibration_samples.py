"""Samples of the data that are kept with a calibration, for steps that run the network on them.

Kept are those with the smallest hashes of their content (a bottom-k sketch, Cohen and Kelley 2007):
the same ones in whatever order the data comes, however it is split over files or processes, and
whichever way partial calibrations are merged. Equal samples count once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from qtool.core.types import Array

MAX_BYTES = 32 << 20
"""Bytes of all kept samples together; there are fewer of them where each is large."""

HOLDOUT_DIVISOR = 3  # one of so many samples judges what was learned from the others


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample: its hash (hex) and its tensors, in the order of the model's inputs."""

    content_hash: str
    tensors: tuple[torch.Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


class CalibrationSamples:
    """At most `limit` samples of all that were seen, in order of their hashes."""

    def __init__(self, limit: int, samples: Iterable[Sample] = ()) -> None:
        self.limit = limit
        self.cache: dict[Any, Any] = {}  # what was found out by running samples; in no file
        self._by_hash: dict[str, Sample] = {}
        self._bound: str | None = None  # the smallest hash that was ever dropped
        self._add(samples)

    def __len__(self) -> int:
        return len(self._by_hash)

    @property
    def n_train(self) -> int:
        """How many of them may be learned from."""
        return len(self) - len(self) // HOLDOUT_DIVISOR

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._by_hash.values())

    def update(self, tensors: Sequence[torch.Tensor], split: bool) -> None:
        """Sees one batch.

        Args:
            tensors: in the order of the model's inputs.
            split: whether samples lie along the first dimension of all; else the batch is one.
        """
        if not self.limit:
            return
        here = [t.detach().cpu() for t in tensors]
        count = len(here[0]) if split else 1
        rows = ([t[i : i + 1] for t in here] if split else here for i in range(count))
        self._add(Sample(content_hash(row), tuple(row)) for row in rows)

    def merge(self, other: CalibrationSamples) -> None:
        """Becomes what seeing the data of both would have made."""
        self._add(other)

    def state(self) -> dict[str, Array]:
        """Arrays by name; equal samples give equal bytes."""
        return {
            f"{sample.content_hash}/{i}": t.numpy()
            for sample in self
            for i, t in enumerate(sample.tensors)
        }

    @classmethod
    def from_state(cls, limit: int, state: Mapping[str, Array]) -> CalibrationSamples:
        """The inverse of `state`. Raises ValueError where a name or an array is damaged."""
        found: dict[str, dict[int, torch.Tensor]] = {}
        for name, array in state.items():
            mark, _, place = name.rpartition("/")
            found.setdefault(mark, {})[int(place)] = torch.from_numpy(np.array(array))
        samples = []
        for mark, by_place in found.items():
            sample = Sample(mark, tuple(by_place[i] for i in range(len(by_place))))
            if content_hash(sample.tensors) != mark:
                raise ValueError("a kept sample does not have its hash")
            samples.append(sample)
        return cls(limit, samples)

    def batches(
        self, size: int, limit: int | None = None, holdout: bool | None = False
    ) -> list[tuple[torch.Tensor, ...]]:
        """Samples in batches of at most `size` of equal shapes, always the same ones; batches that
        were not split are as they came.

        Args:
            most: how many in all, those with the smallest hashes.
            aside: those that nothing may learn from, instead of the others: a third of all, with
                the largest hashes. None: both, where nothing learns.
        """
        ends = {None: slice(None), True: slice(self.n_train, None), False: slice(self.n_train)}
        chosen = list(self)[ends[holdout]]
        by_shape = sorted(
            chosen[:limit], key=lambda s: ([list(t.shape) for t in s.tensors], s.content_hash)
        )
        found = []
        for _, group in groupby(by_shape, key=lambda s: [t.shape for t in s.tensors]):
            samples = list(group)
            if any(t.dim() == 0 or len(t) != 1 for t in samples[0].tensors):  # whole batches
                found += [s.tensors for s in samples]
                continue
            for i in range(0, len(samples), size):
                columns = zip(*(s.tensors for s in samples[i : i + size]), strict=True)
                found.append(tuple(torch.cat(column) for column in columns))
        return found

    def _add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            if self._bound is not None and sample.content_hash >= self._bound:
                continue
            if sample.content_hash not in self._by_hash:
                dense = torch.contiguous_format  # as it will be where it is read back
                own = tuple(t.clone(memory_format=dense) for t in sample.tensors)
                self._by_hash[sample.content_hash] = Sample(sample.content_hash, own)
            if len(self._by_hash) > 2 * self.limit:
                self._cut()
        self._cut()

    def _cut(self) -> None:
        """Keeps those that fit, in order of their hashes, up to the first that does not. More data
        can only move that place forward, so what is dropped would never have come back."""
        kept: dict[str, Sample] = {}
        total = 0
        for mark in sorted(self._by_hash):
            total += self._by_hash[mark].size
            if len(kept) >= self.limit or (kept and total > MAX_BYTES):
                self._bound = mark
                break
            kept[mark] = self._by_hash[mark]
        self._by_hash = kept


def content_hash(tensors: Sequence[torch.Tensor]) -> str:
    """A hash (hex) of the content of tensors on the CPU."""
    digest = hashlib.blake2b(digest_size=16)
    for t in tensors:
        array = t.contiguous().numpy()
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
