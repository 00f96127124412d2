"""The calibrations that several processes made, each on its share of the data, as one.

Statistics are exact and kept samples are told by their content, so the order in which calibrations
are merged leaves no trace: pair by pair, as a tree, the result is that of one process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace

from qtool.calibration.calibration import Calibration
from qtool.calibration.range_convergence import RangeConvergence
from qtool.core.errors import CalibrationError
from qtool.distributed import Ranks
from qtool.observers import depends_on_order


def check_ranks(ranks: Ranks, empty: Calibration) -> None:
    """Before any work: all ranks have the same model and watch it alike. `empty` has seen nothing.

    Raises:
        RanksError: they do not. CalibrationError: a statistic depends on the order of the data.
    """
    if not ranks.is_distributed:
        return
    for name, statistic in empty.statistics.items():
        if depends_on_order(statistic):
            raise CalibrationError(
                f"observer '{empty.specs[name].name}' depends on the order of the data, which "
                "several processes do not have; choose another one, or run one process"
            )
    ranks.check_equal("a different model", empty.fingerprint)
    watched = {name: [str(spec), empty.statistics[name].axis] for name, spec in empty.specs.items()}
    inputs = [str(i) for i in empty.inputs]
    plan = [empty.target, empty.recipe.to_json(), inputs, empty.kept_samples.limit, watched]
    ranks.check_equal("a different plan (options or recipe)", _digest(json.dumps(plan).encode()))


def merge_ranks(ranks: Ranks, own: Calibration, first: str | None) -> Calibration:
    """The calibration on the data of all ranks; the same on all of them.

    Args:
        own: on this rank's share, which may be empty. first: names its first batch; "" if none;
            None: nothing is said of shares.
    """
    if not ranks.is_distributed:
        return own
    growth = RangeConvergence(own.specs)
    notes = () if first is None else _notes(ranks.all_gather(first))
    growth.record(own.samples, own.statistics)

    def add(one: Calibration, other: Calibration) -> Calibration:
        both = one.merge(other)
        growth.record(both.samples, both.statistics)
        return both

    found = ranks.reduce(own, Calibration.to_bytes, Calibration.from_bytes, add)
    if found is not None:
        notes += growth.notes(found.samples, found.statistics)
    whole = Calibration.from_bytes(ranks.broadcast(None if found is None else found.to_bytes()))
    said = json.loads(ranks.broadcast(json.dumps(notes).encode()))
    return replace(whole, notes=tuple(said))


def _notes(first: Iterable[str]) -> tuple[str, ...]:
    """What is odd about the shares, told by the first batch of each."""
    seen: dict[str, int] = {}
    notes = []
    for rank, mark in enumerate(first):
        if not mark:
            notes.append(f"rank {rank} had no data")
        elif seen.setdefault(mark, rank) != rank:
            notes.append(
                f"ranks {seen[mark]} and {rank} began with the same batch: each is to have its own "
                "share of the data"
            )
    return tuple(notes)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
