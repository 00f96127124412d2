"""Goals of a search: which files keep them, which is the best, and what is no goal."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

import qtool
from qtool.core.errors import OptionError


@pytest.mark.parametrize("name", ["max_drop", "min_sqnr", "min_speedup", "max_size", "confidence"])
@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_goal_that_is_no_finite_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=rf"TuneGoals\.{name} is {value}; give a finite number"):
        qtool.TuneGoals(**{name: value})


@pytest.mark.parametrize(
    "goals", [{"min_speedup": 0}, {"min_speedup": -1}, {"max_size": 0}, {"confidence": 1.0}]
)
def test_a_goal_that_nothing_or_everything_keeps_is_refused(goals: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=rf"TuneGoals\.{next(iter(goals))} is "):
        qtool.TuneGoals(**goals)


def test_goals_that_mean_something_are_taken() -> None:
    qtool.TuneGoals(max_drop=-0.01, min_sqnr=-3.0, min_speedup=0.5, max_size=1, confidence=0.0)
