"""Goals and options of a report. Imports nothing heavy: commands take their defaults from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.core.limits import THREADS, Range, check_fields

if TYPE_CHECKING:
    from qtool.core.types import Array

GOAL_RANGES = {
    "drop": Range(),  # negative: the metric has to gain
    "speedup": Range(low=0, low_open=True),
    "coverage": Range(low=0, high=1),
}
OPTION_RANGES = {
    "batch_sizes": Range(low=1, whole=True),
    "threads": THREADS,
    "seconds": Range(low=0),
    "samples": Range(low=1, whole=True),
    "budget": Range(low=0),
}


@dataclass(frozen=True)
class Goals:
    """Goals of a report. None is a default that the verdict uses but that does not count as missed.

    Attributes:
        drop: largest loss of the first metric, in its unit (0.01 of top-1 is one point).
        speedup: least speed-up over the reference.
        coverage: least share of MACs in integer kernels, 0 to 1.

    Raises:
        OptionError: a goal is NaN, infinite or out of its range.
    """

    drop: float | None = None
    speedup: float | None = None
    coverage: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, GOAL_RANGES)


@dataclass(frozen=True, eq=False)
class ReportOptions:
    """What a report measures, and how precisely.

    Attributes:
        title: heading of the report; by default the name of its file, or else of its folder.
        labels: [samples] class numbers, or numbers to predict, of the shape of the first output.
        function: the user's metrics, see `user_metrics` and `over_data` of
            `qtool.evaluation.user_metrics`: of a model, or of outputs and labels.
        where: name of the function in errors.
        lower_is_better: names of its metrics that are errors or losses.
        batch_sizes, threads: every pair of them is timed.
        seconds: duration of each timing.
        samples: number of first samples to measure the layers on, rounded up to whole batches.
        budget: cost of measuring the layers, in runs of the float model.
        goals: goals of the verdict.
        history: file of earlier runs, to which this one is appended; the report shows the trend.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    title: str = ""
    labels: Array | None = None
    function: Callable[[Any], Any] | None = None
    where: str = "the evaluation function"
    lower_is_better: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 32)
    threads: tuple[int, ...] = (1,)
    seconds: float = 2.0
    samples: int = 512
    budget: float = 3.5
    goals: Goals = field(default_factory=Goals)
    history: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, OPTION_RANGES)

    @property
    def mark(self) -> str:
        """What stored results depend on: neither goals nor title."""
        return repr([self.batch_sizes, self.threads, self.seconds])
