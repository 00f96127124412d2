"""How fast files are beside float: the middle of a few sessions.

Within a session the interval is narrow, but where its memory lies and what else the machine does
then moves the ratio of two files by about 5 % from one session to the next, and now and then by a
fifth. More runs of one session do not help; the middle of three is off by two thirds of that, and
is not moved by a single odd one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.analysis.latency import Ratio, timed, worked
from qtool.progress import during

__all__ = ["SESSIONS", "speeds"]

SESSIONS = 3
LEAST_ROUNDS = 5  # in each of them


def speeds(
    reference: Path,
    files: Sequence[Path],
    inputs: Sequence[np.ndarray[Any, Any]],
    seconds: float,
) -> tuple[Ratio, ...]:
    """Files beside the reference, in turns.

    Args:
        seconds: for each file, in all sessions together.
    """
    both, each = [reference, *files], seconds * len(files) / SESSIONS
    with during("timing"):
        found = [
            timed(both, inputs, seconds=each, least_rounds=LEAST_ROUNDS, clock=worked).ratios[1:]
            for _ in range(SESSIONS)
        ]
    return tuple(map(_middle, zip(*found, strict=True)))


def _middle(ratios: Sequence[Ratio]) -> Ratio:
    """The medians' median, with the outermost ends: what is open is mostly between sessions."""
    return Ratio(
        float(np.median([r.median for r in ratios])),
        min(r.low for r in ratios),
        max(r.high for r in ratios),
        min(r.p10 for r in ratios),
        max(r.p90 for r in ratios),
    )
