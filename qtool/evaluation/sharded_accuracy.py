"""Statistics and labels of several ranks, merged in the order of the whole data."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from qtool.core.errors import DataError
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.types import Array
from qtool.distributed import Ranks, interleave
from qtool.metrics.sample_statistics import SampleStatistics


def gather_statistics(ranks: Ranks, own: SampleStatistics | None) -> SampleStatistics | None:
    """Return the statistics of all ranks on rank 0, None on the others.

    Batch i belongs to rank i modulo the number of ranks.

    Args:
        own: statistics of this rank; None if it had no data.

    Raises:
        DataError: no rank had data.
    """
    if not ranks.is_distributed:
        return own
    shares = ranks.gather(b"" if own is None else _saved(**own.arrays()), 0)
    if ranks.rank:
        return None
    parts = [SampleStatistics.from_arrays(_loaded(share)).by_batch() for share in shares if share]
    ordered = interleave(parts)
    if not ordered:
        raise DataError("the evaluation data is empty", DataEdit("give at least one batch"))
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
                f"rank {kinds.index('none')} has no labels",
                CallEdit("pass labels on all ranks or on none"),
            )
        return None
    assert labels is not None
    if "all" in kinds:
        return labels
    cut = np.split(labels, np.cumsum(mine)[:-1]) if mine else []
    packed = [
        ranks.broadcast(_saved(*cut) if ranks.rank == r else None, r) for r in range(ranks.size)
    ]
    return np.concatenate(interleave([list(_loaded(share).values()) for share in packed]))


def _label_kind(labels: Array | None, samples: int) -> str:
    if labels is None:
        return "none"
    return "share" if labels.ndim and len(labels) == samples else "all"


def _saved(*arrays: Array, **named: Array) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays, **named)  # type: ignore[arg-type]  # no name is `allow_pickle`
    return buffer.getvalue()


def _loaded(data: bytes) -> Mapping[str, Array]:
    return np.load(io.BytesIO(data), allow_pickle=False)  # type: ignore[no-any-return]
