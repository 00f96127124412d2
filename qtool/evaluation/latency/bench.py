"""Latency of several files, timed in turns until the intervals are narrow enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qtool.core.number_texts import milliseconds, quantity, table, times
from qtool.core.records import JsonRecord
from qtool.core.summary import Summarized, Summary
from qtool.evaluation.latency.interleaved_timing import STEP, Timing
from qtool.evaluation.machine import Machine

PHASE = "phase"
COLUMNS = (
    "file",
    PHASE,
    "batch",
    "thr.",
    "median",
    "80 % of runs",
    "ratio",
    "95 % interval",
    "rounds",
)


@dataclass(frozen=True)
class Bench(Summarized, JsonRecord):
    """Latency of several files.

    Attributes:
        files: paths in the order of every timing; ratios are first file / each.
        timings: one for each batch size and number of threads.
        precision: requested half-width of the ratios' intervals, relative to the median.
        runtime: where the files ran, with its version; "" for that of their format.
        notes: sentences on what was timed.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("precise",)

    files: tuple[str, ...]
    machine: Machine
    timings: tuple[Timing, ...]
    precision: float
    runtime: str = ""
    notes: tuple[str, ...] = ()

    @property
    def precise(self) -> bool:
        """True if every ratio reached the requested precision."""
        return len(self.files) < 2 or all(
            r.width <= self.precision for t in self.timings for r in t.ratios
        )

    def summary(self, title: str = "") -> Summary:
        """Return the fastest file of each timing."""
        rows = tuple((timing.what, self._fastest(timing)) for timing in self.timings)
        count = quantity(len(self.files), "file")
        place = f"in {self.runtime}, on" if self.runtime else "on"
        return Summary(title or count, f"{place} {self.machine.cpu}", rows, self.notes)

    def _fastest(self, timing: Timing) -> str:
        names = [Path(file).name for file in self.files]
        times_ = [milliseconds(spread.median) for spread in timing.models]
        if len(names) == 1:
            return times_[0]
        order = sorted(range(len(names)), key=lambda i: -timing.ratios[i].median)
        best, second = order[:2]
        other = timing.ratios[best or second]
        if len(names) == 2 and other.low <= 1 <= other.high:
            return f"no difference between {names[0]} and {names[1]} ({times_[0]})"
        compared = 0 if best else second
        ratio = timing.ratios[best].median / timing.ratios[compared].median
        return (
            f"{names[best]} is fastest: {times_[best]}, {times(ratio)} as fast as "
            f"{names[compared]} ({times_[compared]})"
        )

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"

    def table(self) -> str:
        """Return a table with a row per timing and file."""
        rows = [row for timing in self.timings for row in self._rows(timing)]
        if all(timing.phase == "" for timing in self.timings):
            return table([c for c in COLUMNS if c != PHASE], [(*r[:1], *r[2:]) for r in rows])
        return table(COLUMNS, rows)

    def _rows(self, timing: Timing) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for i, (file, spread) in enumerate(zip(self.files, timing.models, strict=True)):
            ratio = timing.ratios[i]
            rows.append(
                (
                    Path(file).name,
                    _phase(timing),
                    str(timing.batch),
                    str(timing.threads),
                    f"{spread.median:.3f} ms",
                    f"{spread.low:.3f} to {spread.high:.3f}",
                    f"{ratio.median:.3f}x" if i else "",
                    f"{ratio.low:.3f} to {ratio.high:.3f}" if i else "",
                    str(timing.rounds),
                )
            )
        return rows


def _phase(timing: Timing) -> str:
    """Return "prompt of 92" or "step after 95", in tokens."""
    if not timing.phase:
        return ""
    count = f"after {timing.cached}" if timing.phase == STEP else f"of {timing.tokens}"
    return f"{timing.phase} {count}"
