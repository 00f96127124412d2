"""Samples that are stored with a calibration, for recovery steps that run the network on them.

Stored are the samples with the smallest hashes of their content (a bottom-k sketch, Cohen and
Kelley 2007): the same ones for every order of the data, every split over files or processes, and
every order of merging partial calibrations. Equal samples count once. A digest of all samples does
not depend on them either.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from qtool.core.data.sample_roles import holds_out, is_estimate, judges
from qtool.core.types import Array

MAX_BYTES = 256 << 20
"""Size of all stored samples for steps, and of all for the estimate; there are fewer if each is
large."""

LAST = "g"  # behind all hexadecimal digits
_WHOLE = "/whole"  # behind the hash of a sample, in names of arrays

ESTIMATES = 128
"""Most samples that are stored for the estimate."""

SPOOLED = 1 << 20  # bytes; a larger tensor waits on disk


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample.

    Attributes:
        content_hash: digest of the tensors, hex.
        tensors: tensors on the CPU, in the order of the model's inputs.
        origin: its place in the data, as "batch 3, row 5"; "" where it is not known. In no file.
        whole: tensors of the same text with an empty KV cache, if a part of it is in `tensors`.
    """

    content_hash: str
    tensors: tuple[torch.Tensor, ...]
    origin: str = ""
    whole: tuple[torch.Tensor, ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


def samples_of(tensors: Sequence[torch.Tensor], split: bool) -> Iterator[list[torch.Tensor]]:
    """Yield the samples of a batch, on the CPU; see `CalibrationSamples.update`."""
    on_cpu = [t.detach().cpu() for t in tensors]
    count = len(on_cpu[0]) if split else 1
    return ([t[i : i + 1] for t in on_cpu] if split else on_cpu for i in range(count))


class _Sketch:
    """The samples with the smallest hashes of all that were added.

    Attributes:
        limit: number of samples to store.
        samples: hash -> sample, in order of the hashes.
        bound: the smallest hash that was ever dropped; `LAST` if none was.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.samples: dict[str, Sample] = {}
        self.bound = LAST

    def add(self, samples: Iterable[Sample], bound: str = LAST) -> None:
        """Add samples. bound: see above, of a sketch that they come from."""
        if bound < self.bound:
            self.bound = bound
            self.samples = {key: each for key, each in self.samples.items() if key < bound}
        for sample in samples:
            key = sample.content_hash
            if key >= self.bound:
                continue
            if key not in self.samples:
                own, whole = (tuple(map(_stored, s)) for s in (sample.tensors, sample.whole))
                self.samples[key] = replace(sample, tensors=own, whole=whole)
            if len(self.samples) > 2 * self.limit:
                self._truncate()
        self._truncate()

    def _truncate(self) -> None:
        """Drop samples from the first that does not fit, in order of their hashes.

        More data can only move that place forward, so no dropped sample would be stored later.
        """
        hashes = sorted(self.samples)
        stored = select_hashes({key: self.samples[key].size for key in hashes}, self.limit)
        if len(stored) < len(hashes):
            self.bound = hashes[len(stored)]
        self.samples = {key: self.samples[key] for key in stored}


class CalibrationSamples:
    """Samples of the calibration data, by their roles (see `sample_roles`).

    At most `limit` samples for steps and `ESTIMATES` for the estimate are stored, those with the
    smallest hashes. Iterating and `len` give the samples for steps: all of them where the data is
    too little to hold some out.

    Attributes:
        limit: number of samples to store for steps; 0 stores none at all.
        total: number of samples that were added.
        cache: results of running the samples; in no file.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self.cache: dict[Any, Any] = {}
        self._for_steps, self._estimates = _Sketch(limit), _Sketch(ESTIMATES if limit else 0)

    @property
    def held_out(self) -> bool:
        """Whether the samples for the estimate stay out of ranges and steps."""
        return holds_out(self.total, len(self._estimates.samples))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Sample]:
        stored = self._for_steps.samples
        if not self.held_out:
            stored = stored | self._estimates.samples
        sizes = {key: sample.size for key, sample in stored.items()}
        return iter(stored[key] for key in select_hashes(sizes, self.limit))

    @property
    def n_train(self) -> int:
        """Number of samples that steps may learn from; the others judge them."""
        return len(self) - len(judges(s.content_hash for s in self))

    def update(
        self,
        tensors: Sequence[torch.Tensor],
        split: bool,
        origin: str = "",
        first: int | None = 0,
        whole: Sequence[torch.Tensor] = (),
    ) -> list[str]:
        """Add one batch; return the hashes of its samples, none without a limit.

        Args:
            tensors: tensors in the order of the model's inputs.
            split: samples lie along the first dimension of all; otherwise the batch is one sample.
            origin: origin of the batch, as "batch 3".
            first: row of the batch that the first sample is; None where rows are not in order.
            whole: the same texts with an empty KV cache, if parts of them are in `tensors`.
        """
        if not self.limit:
            return []
        in_order = split and first is not None
        rows = list(samples_of(tensors, split))
        texts = samples_of(whole, split) if whole else itertools.repeat(())
        samples = [
            Sample(
                content_hash(r), tuple(r), f"{origin}, row {i}" if in_order else origin, tuple(w)
            )
            for i, (r, w) in enumerate(zip(rows, texts, strict=False), first or 0)
        ]
        self._add(samples, len(samples))
        return [sample.content_hash for sample in samples]

    def merge(self, other: CalibrationSamples) -> None:
        """Add the samples of `other`: the result is that of the data of both."""
        self._add(other.stored(), other.total, other.bounds)

    def copy(self) -> CalibrationSamples:
        """Return the same samples, to which others can be added."""
        new = CalibrationSamples(self.limit)
        new.merge(self)
        return new

    @property
    def bounds(self) -> tuple[str, str]:
        """The smallest hash that was dropped, of the samples for steps and for the estimate."""
        return self._for_steps.bound, self._estimates.bound

    def stored(self) -> list[Sample]:
        """Return all stored samples, of every role."""
        return [*self._for_steps.samples.values(), *self._estimates.samples.values()]

    def state(self) -> dict[str, Array]:
        """Return arrays by name; equal samples give equal bytes."""
        return {
            f"{key}/{i}": t.numpy()
            for sample in self.stored()
            for key, tensors in (
                (sample.content_hash, sample.tensors),
                (sample.content_hash + _WHOLE, sample.whole),
            )
            for i, t in enumerate(tensors)
        }

    @classmethod
    def from_state(
        cls,
        limit: int,
        state: Mapping[str, Array],
        total: int = 0,
        bounds: tuple[str, str] = (LAST, LAST),
    ) -> CalibrationSamples:
        """Return the samples of `state`, of `total` with these `bounds`.

        Raises:
            ValueError: a name or an array is damaged.
        """
        tensors: dict[str, dict[int, torch.Tensor]] = {}
        for name, array in state.items():
            key, _, place = name.rpartition("/")
            tensors.setdefault(key, {})[int(place)] = torch.from_numpy(np.array(array))
        samples, ordered = [], {k: tuple(t[i] for i in range(len(t))) for k, t in tensors.items()}
        for key in (k for k in ordered if not k.endswith(_WHOLE)):
            sample = Sample(key, ordered[key], whole=ordered.get(key + _WHOLE, ()))
            if content_hash(sample.tensors) != key:
                raise ValueError("the content of a stored sample does not match its hash")
            samples.append(sample)
        new = cls(limit)
        new._add(samples, total, bounds)
        return new

    def batches(
        self, size: int, limit: int | None = None, holdout: bool | None = False
    ) -> list[tuple[torch.Tensor, ...]]:
        """Return samples for steps in batches of equal shapes, always the same ones.

        Args:
            size: samples per batch, at most. Batches that were not split stay as they are.
            limit: number of samples in all, those with the smallest hashes.
            holdout: True: those that judge, which no step may learn from. False: the others. None:
                all, for steps that do not learn.
        """
        judging = set[str]() if holdout is None else judges(s.content_hash for s in self)
        chosen = [s for s in self if holdout is None or (s.content_hash in judging) is holdout]
        return _in_batches(chosen[:limit], size)

    def estimates(self, size: int, limit: int = 0) -> list[tuple[torch.Tensor, ...]]:
        """Return the samples for the estimate in batches, whole texts of a decoder; where the data
        is too little to hold some out, the first of the others. size, limit: see `batches`."""
        return _in_batches(self._for_estimate(limit), size)

    def estimate_origins(self) -> list[str]:
        """Return the origins of the samples that are held out, in the order of `estimates`."""
        return [s.origin for s in _ordered(self._for_estimate(0))]

    def _for_estimate(self, limit: int) -> list[Sample]:
        held = self._estimates.samples.values() if self.held_out else list(self)[:limit]
        return [replace(s, tensors=s.whole or s.tensors) for s in held]

    def _add(
        self, samples: Iterable[Sample], count: int, bounds: tuple[str, str] = (LAST, LAST)
    ) -> None:
        by_role: dict[bool, list[Sample]] = {False: [], True: []}
        for sample in samples:
            by_role[is_estimate(sample.content_hash)].append(sample)
        self.total += count
        self._for_steps.add(by_role[False], bounds[0])
        self._estimates.add(by_role[True], bounds[1])


def _in_batches(samples: Sequence[Sample], size: int) -> list[tuple[torch.Tensor, ...]]:
    """Join samples of equal shapes; those that are whole batches stay as they are."""
    batches = []
    for _, group in groupby(_ordered(samples), key=lambda s: [t.shape for t in s.tensors]):
        equal = list(group)
        if any(t.dim() == 0 or len(t) != 1 for t in equal[0].tensors):  # whole batches
            batches += [s.tensors for s in equal]
            continue
        for i in range(0, len(equal), size):
            columns = zip(*(s.tensors for s in equal[i : i + size]), strict=True)
            batches.append(tuple(torch.cat(column) for column in columns))
    return batches


def _ordered(samples: Iterable[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda s: ([list(t.shape) for t in s.tensors], s.content_hash))


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, dense as after reading from a file; a large one is mapped from a file that
    has no name, so that the system may take its memory back."""
    if tensor.numel() * tensor.element_size() < SPOOLED:
        return tensor.clone(memory_format=torch.contiguous_format)
    array = tensor.contiguous().numpy()
    with tempfile.TemporaryFile() as file:
        file.write(array.data)
        file.flush()
        return torch.from_numpy(np.memmap(file, array.dtype, "c", shape=array.shape))


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
