"""The batch that all ranks capture with."""

from __future__ import annotations

from qtool.core.data.batches import Batch
from qtool.distributed import Ranks


def broadcast_first_batch(ranks: Ranks, own: Batch | None) -> Batch | None:
    """The first batch of the lowest rank that has any, on all ranks: so that all capture alike."""
    if not ranks.is_distributed:
        return own
    told = ranks.all_gather("" if own is None else "some")
    if "some" not in told:
        return None
    source = told.index("some")
    data = own.to_bytes() if own is not None and ranks.rank == source else None
    return Batch.from_bytes(ranks.broadcast(data, source))
