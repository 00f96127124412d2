"""Statistics and labels of several ranks, merged in the order of the whole data."""

from __future__ import annotations

import io

import numpy as np

from qtool.core.errors import DataError
from qtool.core.types import Array
from qtool.distributed import Ranks
from qtool.evaluation.measure.sample_statistics import SampleStatistics


def gather_statistics(ranks: Ranks, own: SampleStatistics | None) -> SampleStatistics | None:
    """Return the statistics of all ranks on rank 0, None on the others.

    Batch i belongs to rank i modulo the number of ranks.

    Args:
        own: of this rank; None if it had no data.

    Raises:
        DataError: no rank had data.
    """
    if not ranks.is_distributed:
        return own
    shares = ranks.reduce([_pack(own)], b"".join, _split, lambda one, other: one + other)
    if shares is None:
        return None
    parts = [_read(s) for s in shares]
    batches = [m.by_batch() if m is not None else [] for m in parts]
    longest = max(map(len, batches))
    ordered = [b[i] for i in range(longest) for b in batches if i < len(b)]
    if not ordered:
        raise DataError("the evaluation data is empty; give at least one batch")
    return SampleStatistics.joined(ordered)


def gather_labels(ranks: Ranks, own: SampleStatistics | None, labels: Array | None) -> Array | None:
    """Return the labels of all data in its order, on all ranks.

    Args:
        labels: those of all data, or those of the share of this rank.

    Raises:
        DataError: some ranks have labels and others have none.
    """
    if not ranks.is_distributed:
        return labels
    mine = own.sizes if own is not None else ()
    kinds = ranks.all_gather(_label_kind(labels, sum(mine)))
    if "none" in kinds:
        if set(kinds) != {"none"}:
            raise DataError(
                f"rank {kinds.index('none')} has no labels; pass labels on all ranks or on none"
            )
        return None
    assert labels is not None
    if "all" in kinds:
        return labels
    cut = np.split(labels, np.cumsum(mine)[:-1]) if mine else []
    packed = [
        ranks.broadcast(_saved(*cut) if ranks.rank == r else None, r) for r in range(ranks.size)
    ]
    parts = [list(np.load(io.BytesIO(g), allow_pickle=False).values()) for g in packed]
    longest = max(map(len, parts))
    return np.concatenate([p[i] for i in range(longest) for p in parts if i < len(p)])


def _label_kind(labels: Array | None, samples: int) -> str:
    if labels is None:
        return "none"
    return "share" if labels.ndim == 1 and len(labels) == samples else "all"


def _saved(*arrays: Array) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays)
    return buffer.getvalue()


def _pack(own: SampleStatistics | None) -> bytes:
    """Serialize with a length prefix, so that parts can be concatenated."""
    data = b""
    if own is not None:
        buffer = io.BytesIO()
        np.savez(buffer, **own.arrays())  # type: ignore[arg-type]  # names are of fields
        data = buffer.getvalue()
    return len(data).to_bytes(8, "little") + data


def _split(data: bytes) -> list[bytes]:
    parts = []
    while data:
        end = 8 + int.from_bytes(data[:8], "little")
        parts.append(data[:end])
        data = data[end:]
    return parts


def _read(packed: bytes) -> SampleStatistics | None:
    if len(packed) == 8:
        return None
    return SampleStatistics.from_arrays(np.load(io.BytesIO(packed[8:]), allow_pickle=False))
