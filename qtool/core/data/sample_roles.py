"""Roles of calibration samples: what a sample may decide is a function of its own content.

A role is read off the hash of a sample, so it is the same in one pass, in parts that are merged,
on every rank, in memory and block by block.

- FIT: ranges, and what steps learn from.
- JUDGE: ranges, and whether the result of a step is accepted; no step learns from them.
- ESTIMATE: nothing that is in the file. They are new data to it, and tell how it does on new data.

With fewer than `FEWEST_SAMPLES`, or fewer than `FEWEST_ESTIMATES` for the estimate, ranges need
every sample: those of the role ESTIMATE judge then, and the others fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

FEWEST_SAMPLES = 48
FEWEST_ESTIMATES = 8  # a 95 % interval of a median needs 6
ESTIMATE_SHARE = 0.2
JUDGE_SHARE = 0.2  # of all samples, as long as some are kept for the estimate
FEWEST_JUDGED = 4  # at least every n-th of the samples for steps judges

_DIGITS = 8  # of the hash, at its end: its beginning decides which samples are stored


class Role(Enum):
    """What a sample may decide."""

    FIT = "fit"
    JUDGE = "judge"
    ESTIMATE = "estimate"


def position(content_hash: str) -> float:
    """Return where a sample lies among all, 0 to 1, from the end of its hash (hex)."""
    return float(int(content_hash[-_DIGITS:], 16) / 16**_DIGITS)


def is_estimate(content_hash: str) -> bool:
    """Return whether a sample has the role ESTIMATE where there are enough of them."""
    return position(content_hash) < ESTIMATE_SHARE


def holds_out(total: int, estimates: int) -> bool:
    """Return whether the samples of the estimate stay out of everything.

    Args:
        total: number of all samples.
        estimates: number of those with the role ESTIMATE.
    """
    return total >= FEWEST_SAMPLES and estimates >= FEWEST_ESTIMATES


def roles_of(hashes: Iterable[str], total: int) -> dict[str, Role]:
    """Return the role of each sample.

    Args:
        hashes: content hashes of all samples.
        total: number of samples, with equal ones.
    """
    names = set(hashes)
    held = {name for name in names if is_estimate(name)}
    held = held if holds_out(total, len(held)) else set()
    judging = judges(names - held)
    return {
        name: Role.ESTIMATE if name in held else Role.JUDGE if name in judging else Role.FIT
        for name in names
    }


def judges(hashes: Iterable[str]) -> set[str]:
    """Return which of the samples for steps judge them; the others fit.

    Args:
        hashes: content hashes of all samples that are not held out.
    """
    ordered = sorted(hashes, key=position)
    held_out = bool(ordered) and position(ordered[0]) >= ESTIMATE_SHARE
    share = ESTIMATE_SHARE + JUDGE_SHARE if held_out else ESTIMATE_SHARE
    drawn = sum(position(name) < share for name in ordered)
    count = max(drawn, len(ordered) // FEWEST_JUDGED)
    return set(ordered[: min(count, len(ordered) // 2)])  # of few samples some have to fit
