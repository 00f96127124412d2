"""Samples that are stored with a calibration, for recovery steps that run the network on them.

Stored are the samples with the smallest hashes of their content (a bottom-k sketch, Cohen and
Kelley 2007): the same ones for every order of the data, every split over files or processes, and
every order of merging partial calibrations. Equal samples count once. A digest of all samples does
not depend on them either.
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
"""Size of all stored samples together; there are fewer of them if each is large."""

HOLDOUT_DIVISOR = 3  # one of this many samples is held out


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample.

    Attributes:
        content_hash: of the tensors, hex.
        tensors: on the CPU, in the order of the model's inputs.
    """

    content_hash: str
    tensors: tuple[torch.Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


def samples_of(tensors: Sequence[torch.Tensor], split: bool) -> Iterator[list[torch.Tensor]]:
    """Yield the samples of a batch, on the CPU; see `CalibrationSamples.update`."""
    on_cpu = [t.detach().cpu() for t in tensors]
    count = len(on_cpu[0]) if split else 1
    return ([t[i : i + 1] for t in on_cpu] if split else on_cpu for i in range(count))


class CalibrationSamples:
    """At most `limit` samples of all that were added, in order of their hashes.

    Attributes:
        limit: number of samples to store.
        cache: results of running the samples; in no file.
    """

    def __init__(self, limit: int, samples: Iterable[Sample] = ()) -> None:
        self.limit = limit
        self.cache: dict[Any, Any] = {}
        self._by_hash: dict[str, Sample] = {}
        self._bound: str | None = None  # the smallest hash that was ever dropped
        self._add(samples)

    def __len__(self) -> int:
        return len(self._by_hash)

    @property
    def n_train(self) -> int:
        """Number of samples that steps may learn from; the others are held out."""
        return train_count(len(self))

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._by_hash.values())

    def update(self, tensors: Sequence[torch.Tensor], split: bool) -> None:
        """Add one batch.

        Args:
            tensors: in the order of the model's inputs.
            split: samples lie along the first dimension of all; otherwise the batch is one sample.
        """
        if not self.limit:
            return
        self._add(Sample(content_hash(row), tuple(row)) for row in samples_of(tensors, split))

    def merge(self, other: CalibrationSamples) -> None:
        """Add the samples of `other`: the result is that of the data of both."""
        self._add(other)

    def state(self) -> dict[str, Array]:
        """Return arrays by name; equal samples give equal bytes."""
        return {
            f"{sample.content_hash}/{i}": t.numpy()
            for sample in self
            for i, t in enumerate(sample.tensors)
        }

    @classmethod
    def from_state(cls, limit: int, state: Mapping[str, Array]) -> CalibrationSamples:
        """Return the samples of `state`.

        Raises:
            ValueError: a name or an array is damaged.
        """
        tensors: dict[str, dict[int, torch.Tensor]] = {}
        for name, array in state.items():
            key, _, position = name.rpartition("/")
            tensors.setdefault(key, {})[int(position)] = torch.from_numpy(np.array(array))
        samples = []
        for key, by_position in tensors.items():
            sample = Sample(key, tuple(by_position[i] for i in range(len(by_position))))
            if content_hash(sample.tensors) != key:
                raise ValueError("the content of a stored sample does not match its hash")
            samples.append(sample)
        return cls(limit, samples)

    def batches(
        self, size: int, limit: int | None = None, holdout: bool | None = False
    ) -> list[tuple[torch.Tensor, ...]]:
        """Return samples in batches of equal shapes, always the same ones.

        Args:
            size: samples per batch, at most. Batches that were not split stay as they are.
            limit: number of samples in all, those with the smallest hashes.
            holdout: True: the third with the largest hashes, which no step may learn from. False:
                the others. None: all, for steps that do not learn.
        """
        parts = {
            None: slice(None),
            True: slice(self.n_train, None),
            False: slice(self.n_train),
        }
        chosen = list(self)[parts[holdout]][:limit]
        chosen.sort(key=lambda s: ([list(t.shape) for t in s.tensors], s.content_hash))
        batches = []
        for _, group in groupby(chosen, key=lambda s: [t.shape for t in s.tensors]):
            samples = list(group)
            if any(t.dim() == 0 or len(t) != 1 for t in samples[0].tensors):  # whole batches
                batches += [s.tensors for s in samples]
                continue
            for i in range(0, len(samples), size):
                columns = zip(*(s.tensors for s in samples[i : i + size]), strict=True)
                batches.append(tuple(torch.cat(column) for column in columns))
        return batches

    def _add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            key = sample.content_hash
            if self._bound is not None and key >= self._bound:
                continue
            if key not in self._by_hash:
                # dense, as after reading from a file
                copies = (t.clone(memory_format=torch.contiguous_format) for t in sample.tensors)
                self._by_hash[key] = Sample(key, tuple(copies))
            if len(self._by_hash) > 2 * self.limit:
                self._truncate()
        self._truncate()

    def _truncate(self) -> None:
        """Drop samples from the first that does not fit, in order of their hashes.

        More data can only move that place forward, so no dropped sample would be stored later.
        """
        hashes = sorted(self._by_hash)
        stored = select_hashes({key: self._by_hash[key].size for key in hashes}, self.limit)
        if len(stored) < len(hashes):
            self._bound = hashes[len(stored)]
        self._by_hash = {key: self._by_hash[key] for key in stored}


def select_hashes(sizes: Mapping[str, int], limit: int) -> list[str]:
    """Return the hashes of the samples to store, in order.

    Args:
        sizes: hash -> bytes.
        limit: number of samples.
    """
    stored: list[str] = []
    total = 0
    for key in sorted(sizes):
        total += sizes[key]
        if len(stored) >= limit or (stored and total > MAX_BYTES):
            break
        stored.append(key)
    return stored


def train_count(count: int) -> int:
    """Return how many of the stored samples steps may learn from; those behind are held out."""
    return count - count // HOLDOUT_DIVISOR


def content_hash(tensors: Sequence[torch.Tensor]) -> str:
    """Return a hash (hex) of types, shapes and values of tensors on the CPU."""
    digest = hashlib.blake2b(digest_size=16)
    for t in tensors:
        array = t.contiguous().numpy()
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


_MODULUS = 1 << 128


class DataDigest:
    """The sum of the hashes of all samples, so that parts of the data are merged by adding."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add one batch: tensors in the order of the model's inputs.

        A batch is split into samples if all tensors have the same first size.
        """
        split = len({t.shape[:1] for t in tensors}) == 1 and tensors[0].dim() > 0
        for row in samples_of(tensors, split):
            self._sum += int(content_hash(row), 16)

    def text(self) -> str:
        """Return 32 hexadecimal digits."""
        return f"{self._sum % _MODULUS:032x}"


def merged_digest(one: str, other: str) -> str:
    """Return the digest of the data of both; "" if one of them is unknown."""
    if not one or not other:
        return ""
    return f"{(int(one, 16) + int(other, 16)) % _MODULUS:032x}"
