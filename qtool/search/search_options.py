"""Options of a mixed-precision search."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.core.limits import Range, check_fields

_RANGES = {
    "evaluations": Range(low=1, whole=True),
    "budget": Range(low=0),
    "timing": Range(low=0),
}


@dataclass(frozen=True)
class SearchOptions:
    """What a search may choose, and how long it takes.

    Attributes:
        choices: keys of `CHOICES`: the precisions of a layer; float is always allowed.
        groups: globs; layers that match the same glob get the same precision.
        evaluations: maximum number of evaluated files.
        budget: seconds; None: no limit.
        front: True spends the remaining evaluations on the Pareto front.
        timing: seconds to time each file.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    choices: tuple[str, ...] = ("static", "dynamic", "int8-weights")
    groups: tuple[str, ...] = ()
    evaluations: int = 20
    budget: float | None = None
    front: bool = False
    timing: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self, _RANGES)
