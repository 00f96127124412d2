"""The trend of a report: earlier runs with the same float model or file, as lines and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qtool.core.formats import db, size
from qtool.evaluation.history import Run

WIDTH, HEIGHT, MARGIN = 160.0, 28.0, 3.0
ROWS = 20
"""Runs in the trend, the latest ones."""


@dataclass(frozen=True)
class TrendLine:
    """One quantity over the runs.

    Attributes:
        name: name of the quantity.
        values: formatted, one per run; empty where it was not measured.
        points: corners of the line in an SVG of `WIDTH` by `HEIGHT`.
    """

    name: str
    values: tuple[str, ...]
    points: str


@dataclass(frozen=True)
class Trend:
    """The latest runs, oldest first, and a line for each quantity."""

    runs: tuple[Run, ...]
    lines: tuple[TrendLine, ...]


def make_trend(runs: Sequence[Run]) -> Trend | None:
    """Return the trend up to the last run; None without an earlier run on the same model.

    Speed is compared between runs on one kind of processor only.
    """
    last = runs[-1]
    same = [r for r in runs if r.model == last.model and (r.model or r.file == last.file)]
    latest = tuple(same[-ROWS:])
    if len(latest) < 2:
        return None
    names = dict.fromkeys(name for run in latest for name in run.metrics)
    lines = [
        _line(name, [run.metrics.get(name) for run in latest], lambda v: f"{v:.5g}")
        for name in names
    ]
    here = [run.speedup if run.cpu == last.cpu else None for run in latest]
    lines += [
        _line("SQNR, dB", [run.sqnr_db for run in latest], db),
        _line(f"speed-up on {last.cpu}", here, lambda v: f"{v:.2f}x"),
        _line("size", [run.size_bytes for run in latest], lambda v: size(int(v))),
    ]
    return Trend(latest, tuple(line for line in lines if any(line.values)))


def _line(name: str, values: Sequence[float | None], text: Callable[[float], str]) -> TrendLine:
    known = [(i, value) for i, value in enumerate(values) if value is not None]
    low, high = (f((v for _, v in known), default=0.0) for f in (min, max))
    step = (WIDTH - 2 * MARGIN) / max(len(values) - 1, 1)
    span = (high - low) or 1.0
    points = " ".join(
        f"{MARGIN + i * step:.1f},{HEIGHT - MARGIN - (v - low) / span * (HEIGHT - 2 * MARGIN):.1f}"
        for i, v in known
    )
    return TrendLine(name, tuple("" if v is None else text(v) for v in values), points)
