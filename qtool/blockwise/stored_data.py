"""The calibration data on disk: batches to learn from, and batches of held-out samples.

Samples have the roles that they have in memory (`core.data.sample_roles`). Those for the estimate
run through the float and the quantized blocks like all others, but enter no range and no step; the
reported errors are theirs. A batch with samples of several roles is stored in as many parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qtool.blockwise.checkpoint import Checkpoint
from qtool.calibration.strip_padding import strip_padding
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import content_hash, samples_of
from qtool.core.data.sample_roles import Role, roles_of
from qtool.core.graph.float_graph import MIN_SAMPLES


@dataclass(frozen=True)
class StoredBatch:
    """A batch of the data.

    Attributes:
        number: number of its file.
        size: number of samples.
        role: role of its samples.
        measured: the reported errors are those on it and others.
    """

    number: int
    size: int
    role: Role = Role.FIT
    measured: bool = True

    @property
    def fitted(self) -> bool:
        """Whether steps learn from it."""
        return self.role is Role.FIT


@dataclass(frozen=True)
class _Part:
    """A batch without padding.

    Attributes:
        index: number of its file.
        size: number of samples.
        samples: hash of each sample; of the whole batch where it cannot be split.
    """

    index: int
    size: int
    samples: Sequence[str]

    def pieces(self, roles: Mapping[str, Role], fewest: int) -> Iterator[tuple[Role, list[int]]]:
        """Yield the role of a piece, and the indices of its samples.

        Args:
            roles: roles of the samples, by their hashes.
            fewest: samples of a batch; in a smaller piece some samples are there again.
        """
        own = [roles[name] for name in self.samples]
        for role in Role:
            rows = [i for i, each in enumerate(own) if each is role]
            if rows:
                yield role, (rows * fewest)[:fewest] if len(rows) < fewest else rows


def store_data(
    whole: G.FloatGraph,
    data: Iterator[Batch],
    checkpoint: Checkpoint,
    required: Sequence[str],
) -> list[StoredBatch]:
    """Store the data as inputs of the first block; return the batches, in order.

    Args:
        whole: the graph of the model.
        data: the batches, bound to the graph.
        checkpoint: stores the tensors, unless it has finished blocks.
        required: names of the inputs to store.
    """
    parts = _store_parts(whole, data, checkpoint)
    checkpoint.check_identity("data", _digest(parts))
    names = [name for part in parts for name in part.samples]
    roles = roles_of(names, len(names))
    fewest = whole.batch_size_range()[0]
    pieces = _divide(parts, roles, fewest if fewest > MIN_SAMPLES else 1)
    if not checkpoint.finished:
        for batch, part, rows in pieces:
            values, _ = checkpoint.own_data.load(part.index)
            if rows != list(range(len(part.samples))):
                values = {name: value[rows] for name, value in values.items()}
            stored = {n: values[n] for n in required}
            checkpoint.activations(0).save(batch.number, stored, stored)
            if batch.measured:
                checkpoint.measured.save(batch.number, values, values)
    checkpoint.own_data.remove()
    return [batch for batch, _, _ in pieces]


def _divide(
    parts: Sequence[_Part], roles: Mapping[str, Role], fewest: int
) -> list[tuple[StoredBatch, _Part, list[int]]]:
    """Return the batches to store, and of each its part and the indices of its samples there."""
    pieces = list[tuple[StoredBatch, _Part, list[int]]]()
    for part in parts:
        for role, rows in part.pieces(roles, fewest):
            size = len(rows) if part.size == len(part.samples) else part.size
            measured = role is Role.ESTIMATE
            pieces.append((StoredBatch(len(pieces), size, role, measured), part, rows))
    if any(batch.measured for batch, _, _ in pieces):
        return pieces
    return [(replace(batch, measured=True), part, rows) for batch, part, rows in pieces]


def _store_parts(whole: G.FloatGraph, data: Iterator[Batch], checkpoint: Checkpoint) -> list[_Part]:
    """Store the batches without padding; return them."""
    names, parts = [i.name for i in whole.inputs], list[_Part]()
    for batch in data:
        for part in strip_padding(whole, batch):
            tensors = whole.tensors_of(part)
            samples = [content_hash(t) for t in samples_of(tensors, whole.batches_are_samples)]
            if not checkpoint.finished:
                values = dict(zip(names, tensors, strict=True))
                checkpoint.own_data.save(len(parts), values, values)
            parts.append(_Part(len(parts), part.size, samples))
    return parts


def _digest(parts: Sequence[_Part]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part.size} {' '.join(part.samples)}\n".encode())
    return digest.hexdigest()[:32]
