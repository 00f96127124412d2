"""The calibration data on disk: batches to learn from, and batches of held-out samples.

Held out are the samples that a conversion in memory holds out (`core.data.calibration_samples`).
They run through the float and the quantized blocks like all others, but no step learns from them;
the reported errors are theirs. A batch with samples of both kinds is stored as two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from qtool.algorithms.registry import ESTIMATE_SAMPLES
from qtool.blockwise.checkpoint import Checkpoint
from qtool.calibration.strip_padding import strip_padding
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import (
    content_hash,
    samples_of,
    select_hashes,
    train_count,
)
from qtool.core.graph.float_graph import MIN_SAMPLES
from qtool.distributed import interleave


@dataclass(frozen=True)
class StoredBatch:
    """A batch of the data.

    Attributes:
        number: of its file.
        size: number of samples.
        fitted: steps learn from it.
        measured: the reported errors are those on it and others.
    """

    number: int
    size: int
    fitted: bool = True
    measured: bool = True


@dataclass(frozen=True)
class _Part:
    """A batch without padding, as this or another rank read it.

    Attributes:
        rank: has read it.
        index: of its file on that rank.
        size: number of samples.
        samples: hash and bytes of each sample; of the whole batch where it cannot be split.
    """

    rank: int
    index: int
    size: int
    samples: Sequence[tuple[str, int]]

    def pieces(self, holdout: frozenset[str], fewest: int) -> Iterator[tuple[bool, list[int]]]:
        """Yield whether a piece is held out, and the indices of its samples.

        Args:
            holdout: hashes of the held-out samples.
            fewest: samples of a batch; with fewer in a piece the whole batch is learned from.
        """
        held = [name in holdout for name, _ in self.samples]
        kinds = [[i for i, each in enumerate(held) if each is kind] for kind in (False, True)]
        if all(kinds) and min(map(len, kinds)) >= fewest:
            yield from zip((False, True), kinds, strict=True)
        else:
            yield all(held), list(range(len(held)))


def store_data(
    whole: G.FloatGraph,
    data: Iterator[Batch],
    checkpoint: Checkpoint,
    keep: int,
    required: Callable[[Sequence[StoredBatch], StoredBatch], Iterable[str]],
) -> list[StoredBatch]:
    """Store the data as inputs of the first block; return the batches of all ranks, in order.

    Args:
        whole: the graph of the model.
        data: the batches of this rank, bound to the graph.
        checkpoint: stores the tensors, unless it has finished blocks.
        keep: number of samples that a calibration in memory keeps for the steps; 0 if none learns:
            then nothing is held out, and all batches are measured.
        required: (all batches, one of them) -> names of its inputs to store.
    """
    ranks = checkpoint.ranks
    own = json.dumps(_store_parts(whole, data, checkpoint))
    parts = _all_parts([json.loads(text) for text in ranks.all_gather(own)])
    checkpoint.check_identity("data", _digest(parts))
    hashes = dict(sample for part in parts for sample in part.samples)
    kept = select_hashes(hashes, keep)
    holdout = frozenset(kept[train_count(len(kept)) :][:ESTIMATE_SAMPLES])
    fewest = whole.batch_size_range()[0]
    pieces = _divide(parts, holdout, fewest if fewest > MIN_SAMPLES else 1)
    if not checkpoint.finished:
        batches = [batch for batch, _, _ in pieces]
        for batch, part, rows in pieces:
            if part.rank == ranks.rank:
                values, _ = checkpoint.own_data.load(part.index)
                stored = {n: values[n] for n in required(batches, batch)}
                if len(rows) < len(part.samples):
                    stored = {name: value[rows] for name, value in stored.items()}
                checkpoint.activations(0).save(batch.number, stored, stored)
    ranks.all_gather("")  # a barrier: all data is stored
    checkpoint.own_data.remove()
    return [batch for batch, _, _ in pieces]


def _divide(
    parts: Sequence[_Part], holdout: frozenset[str], fewest: int
) -> list[tuple[StoredBatch, _Part, list[int]]]:
    """Return the batches to store, and of each its part and the indices of its samples there."""
    pieces = list[tuple[StoredBatch, _Part, list[int]]]()
    for part in parts:
        for held, rows in part.pieces(holdout, fewest):
            size = len(rows) if part.size == len(part.samples) else part.size
            pieces.append((StoredBatch(len(pieces), size, not held, held), part, rows))
    if any(batch.measured for batch, _, _ in pieces):
        return pieces
    return [(replace(batch, measured=True), part, rows) for batch, part, rows in pieces]


def _store_parts(
    whole: G.FloatGraph, data: Iterator[Batch], checkpoint: Checkpoint
) -> list[list[tuple[int, list[tuple[str, int]]]]]:
    """Store the batches of this rank without padding; return sizes and samples of the parts of
    each."""
    names, store, index = [i.name for i in whole.inputs], checkpoint.own_data, 0
    rows, split = [], whole.batches_are_samples
    for batch in data:
        rows.append(list[tuple[int, list[tuple[str, int]]]]())
        for part in strip_padding(whole, batch):
            tensors = whole.tensors_of(part)
            samples = [(content_hash(each), _bytes(each)) for each in samples_of(tensors, split)]
            rows[-1].append((part.size, samples))
            if not checkpoint.finished:
                values = dict(zip(names, tensors, strict=True))
                store.save(index, values, values)
            index += 1
    return rows


def _all_parts(gathered: list[list[list[tuple[int, list[list[str | int]]]]]]) -> list[_Part]:
    """Return the parts of all ranks in the order of the data. gathered: `_store_parts` of each."""
    shares = []
    for rank, batches in enumerate(gathered):
        index, share = 0, []
        for batch in batches:
            share.append([
                _Part(rank, index + i, size, [(str(name), int(count)) for name, count in samples])
                for i, (size, samples) in enumerate(batch)
            ])  # fmt: skip
            index += len(batch)
        shares.append(share)
    return [part for batch in interleave(shares) for part in batch]


def _digest(parts: Sequence[_Part]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part.size} {' '.join(name for name, _ in part.samples)}\n".encode())
    return digest.hexdigest()[:32]


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
