"""Merges the calibrations of several ranks, each on its shard of the data, into one.

Statistics are exact and stored samples are identified by a hash of their content, so the order of
merging does not matter: the result of a pairwise tree is byte-identical to that of one process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace

from qtool.calibration.calibration import Calibration
from qtool.calibration.range_convergence import RangeConvergence
from qtool.core.errors import CalibrationError
from qtool.core.remedies import Argument, Setup
from qtool.distributed import Ranks
from qtool.observers import depends_on_order


def check_ranks(ranks: Ranks, empty: Calibration) -> None:
    """Check, before any work, that all ranks observe the same tensors of the same model.

    Args:
        empty: the calibration of this rank before the first batch.

    Raises:
        RanksError: the ranks have different models or plans.
        CalibrationError: a statistic depends on the order of the data.
    """
    if not ranks.is_distributed:
        return
    for name, statistic in empty.statistics.items():
        if depends_on_order(statistic):
            raise CalibrationError(
                f"observer '{empty.specs[name].name}' depends on the order of the data, which "
                "several processes do not have",
                Argument("--observer", text="choose another {}"),
                Setup("run one process"),
            )
    ranks.check_equal("a different model", empty.fingerprint)
    observed = {
        name: [str(spec), empty.statistics[name].axis] for name, spec in empty.specs.items()
    }
    inputs = [str(i) for i in empty.inputs]
    plan = [empty.target, empty.recipe.to_json(), inputs, empty.kept_samples.limit, observed]
    ranks.check_equal("a different plan (options or recipe)", _digest(json.dumps(plan).encode()))


def merge_ranks(ranks: Ranks, own: Calibration, first: str | None) -> Calibration:
    """Return the calibration on the data of all ranks; it is the same on every rank.

    Args:
        own: the calibration on this rank's shard, which may be empty.
        first: content hash of the shard's first batch, "" without one; None skips the notes about
            shards.
    """
    if not ranks.is_distributed:
        return own
    convergence = RangeConvergence()
    notes = () if first is None else _shard_notes(ranks.all_gather(first))
    convergence.record(own.samples, own)

    def add(one: Calibration, other: Calibration) -> Calibration:
        both = one.merge(other)
        convergence.record(both.samples, both)
        return both

    merged = ranks.reduce(own, Calibration.to_bytes, Calibration.from_bytes, add)
    if merged is not None:  # only on the first rank
        notes += convergence.notes(merged.samples, merged)
    whole = Calibration.from_bytes(ranks.broadcast(None if merged is None else merged.to_bytes()))
    notes = json.loads(ranks.broadcast(json.dumps(notes).encode()))
    return replace(whole, notes=tuple(notes))


def _shard_notes(first_hashes: Iterable[str]) -> tuple[str, ...]:
    """Return notes on empty and duplicate shards, from the hash of each first batch."""
    ranks: dict[str, int] = {}
    notes = []
    for rank, first in enumerate(first_hashes):
        if not first:
            notes.append(f"rank {rank} had no data")
        elif ranks.setdefault(first, rank) != rank:
            notes.append(
                f"ranks {ranks[first]} and {rank} began with the same batch; give each rank "
                "its own shard of the data"
            )
    return tuple(notes)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
