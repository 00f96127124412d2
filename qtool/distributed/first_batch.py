"""The batch that all ranks capture with."""

from __future__ import annotations

from qtool.core.data.batches import Batch
from qtool.core.errors import DataError
from qtool.distributed import Ranks


def broadcast_first_batch(ranks: Ranks, own: Batch | None, purpose: str = "calibration") -> Batch:
    """Return the first batch of the lowest rank that has one, so that all capture the same graph.

    Args:
        own: first batch of this rank; None if its shard is empty.
        purpose: of the data.

    Raises:
        DataError: no rank has a batch.
    """
    states = ranks.all_gather("" if own is None else "some")
    if "some" not in states:
        raise DataError(f"the {purpose} data is empty; give at least one batch")
    if not ranks.is_distributed and own is not None:
        return own
    source = states.index("some")
    data = own.to_bytes() if own is not None and ranks.rank == source else None
    return Batch.from_bytes(ranks.broadcast(data, source))
