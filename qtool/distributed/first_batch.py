"""The first batch of all data: all ranks begin with the same one."""

from __future__ import annotations

from qtool.core.data import Batch
from qtool.core.errors import DataError
from qtool.core.remedies import DataEdit
from qtool.distributed.ranks import Ranks


def broadcast_first_batch(ranks: Ranks, own: Batch | None, purpose: str = "calibration") -> Batch:
    """Return the first batch of the lowest rank that has one, so that all capture the same graph.

    Args:
        own: first batch of this rank; None if its shard is empty.
        purpose: use of the data, a word for the message.

    Raises:
        DataError: no rank has a batch.
    """
    states = ranks.all_gather("" if own is None else "some")
    if "some" not in states:
        raise DataError(f"the {purpose} data is empty", DataEdit("give at least one batch"))
    if not ranks.is_distributed and own is not None:
        return own
    source = states.index("some")
    data = own.to_bytes() if own is not None and ranks.rank == source else None
    return Batch.from_bytes(ranks.broadcast(data, source))
