"""Goals and limits of a search, as records: options of `qtool tune`. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.core.limits import Range
from qtool.core.option_records import OptionRecord, option


@dataclass(frozen=True)
class SearchGoals(OptionRecord):
    """Goals of a search. Of the files that meet them, the fastest (or smallest) is delivered.

    Without max_drop and min_sqnr, a metric that is a share may lose one point, any other 1 % of the
    float model's value.

    Attributes:
        max_drop: largest allowed drop of the metric, in its unit (0.01 of top-1 accuracy is one
            point); compared with the upper confidence bound of the drop.
        min_sqnr: lowest allowed SQNR of the outputs, in dB.
        min_speedup: lowest allowed speed-up over float.
        max_size: largest allowed file size in bytes.
        smallest: pick the smallest file that meets the goals, not the fastest.
        confidence: confidence level of the bound of the drop, 0 to 1.

    Raises:
        OptionError: a goal is NaN, infinite or out of its range.
    """

    max_drop: float | None = option(None, range=Range())  # negative: the metric has to gain
    min_sqnr: float | None = option(None, range=Range())
    min_speedup: float | None = option(None, range=Range(low=0, low_open=True))
    max_size: int | None = option(None, range=Range(low=1, whole=True))
    smallest: bool = option(False)
    confidence: float = option(0.95, range=Range(low=0, high=1, high_open=True))


@dataclass(frozen=True)
class SearchOptions(OptionRecord):
    """What a search may choose, and how long it takes.

    Attributes:
        choices: schemes the search may choose from: static, static-16, dynamic, int8-weights,
            int4-weights, int2-weights; float is always allowed.
        groups: layers that must get the same scheme, as a glob; by default those of one operator
            type that read the same tensor.
        evaluations: largest number of files to run on the evaluation data.
        budget: approximate time limit of the search in seconds.
        timing: seconds to time each file.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    choices: tuple[str, ...] = option(("static", "dynamic", "int8-weights"), kind="choices")
    groups: tuple[str, ...] = option((), "group", repeated=True, metavar="GLOB")
    evaluations: int = option(20, range=Range(low=1, whole=True))
    budget: float | None = option(None, range=Range(low=0))
    timing: float = option(0.5, range=Range(low=0))
