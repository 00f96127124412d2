"""Rows of a summary on the latency of a model next to that of its reference."""

from __future__ import annotations

from collections.abc import Sequence

from qtool.core import formats
from qtool.evaluation.latency.interleaved_timing import STEP, Timing

Row = tuple[str, str]
"""Label and figures."""

FLOAT = "float"
"""Name of the reference, unless it is another quantized file."""


def speed_rows(timings: Sequence[Timing], model: int = 1, name: str = FLOAT) -> list[Row]:
    """Return the latency of a model, what counts first: of a decoder the step, then the prompt."""
    return [
        (timing.phase or "speed", speed_text(timing, model, name))
        for timing in sorted(timings, key=lambda timing: timing.phase != STEP)
    ]


def speed_text(timing: Timing, model: int = 1, name: str = FLOAT) -> str:
    """Return the latency of a model next to that of the reference."""
    reference, own = (formats.milliseconds(timing.models[i].median) for i in (0, model))
    ratio = formats.times(timing.ratios[model].median)
    what = timing.what.removeprefix(f"{timing.phase} ")
    return f"{own}, {ratio} as fast as {name} ({reference}; {what})"
