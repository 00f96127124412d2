"""Goals and options of a report. Imports nothing heavy: commands take their defaults from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.core.limits import DAY, THREADS, Range
from qtool.core.option_records import OptionRecord, option

if TYPE_CHECKING:
    from qtool.core.types import Array

_COUNT = Range(low=1, whole=True)


@dataclass(frozen=True)
class Goals(OptionRecord):
    """Goals of a report. None is a default that the verdict uses but that does not count as missed.

    Raises:
        OptionError: a goal is NaN, infinite or out of its range.
    """

    drop: float | None = option(  # negative: the metric has to gain
        None,
        "Exit with 1 if the first metric drops by more (0.01 of top-1 accuracy is one point).",
        "max-drop",
        range=Range(),
    )
    speedup: float | None = option(
        None,
        "Exit with 1 if the speed-up is smaller.",
        "min-speedup",
        range=Range(low=0, low_open=True),
    )
    coverage: float | None = option(
        None,
        "Exit with 1 if a smaller share of the MACs (0 to 1) runs in integer kernels.",
        "min-coverage",
        range=Range(low=0, high=1),
    )


@dataclass(frozen=True, eq=False)
class ReportOptions(OptionRecord):
    """What a report measures, and how precisely.

    Attributes:
        title: heading of the report; by default the name of its file, or else of its folder.
        labels: [samples] class numbers, or numbers to predict, of the shape of the first output.
        function: the user's metrics, see `user_metrics` and `over_data` of
            `qtool.evaluation.user_metrics`: of a model, or of outputs and labels.
        where: name of the function in errors.
        goals: goals of the verdict.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    title: str = ""
    labels: Array | None = None
    function: Callable[[Any], Any] | None = None
    where: str = "the evaluation function"
    lower_is_better: tuple[str, ...] = option(
        (),
        "Name of a metric of your function for which lower is better.",
        "minimize",
        repeated=True,
        metavar="NAME",
    )
    batch_sizes: tuple[int, ...] = option(
        (1, 32), "Batch sizes to benchmark, for example 1,32.", kind="counts", range=_COUNT
    )
    threads: tuple[int, ...] = option(
        (1,),
        "Numbers of threads to benchmark with, for example 1,4.",
        kind="counts",
        range=THREADS,
    )
    seconds: float = option(
        2.0, "Time limit for each benchmark.", range=Range(0, DAY, low_open=True)
    )
    samples: int = option(
        512,
        "Measure the sensitivity of the layers on this many samples, the first ones.",
        "layer-samples",
        range=_COUNT,
    )
    budget: float = option(
        3.5,
        "Time limit for measuring the layers, in runs of the float model.",
        range=Range(low=2.5),
    )
    goals: Goals = field(default_factory=Goals)
    history: Path | None = option(
        None,
        "Append a line of JSON on this run to FILE, such as history.jsonl.",
        kind="path",
        metavar="FILE",
    )

    @property
    def mark(self) -> str:
        """What stored results depend on: neither goals nor title."""
        return repr([self.batch_sizes, self.threads, self.seconds])
