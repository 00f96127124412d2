"""Ranges of numbers: what is in, what is out, and what the refusal says."""

from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from qtool.core.errors import OptionError
from qtool.core.limits import THREADS, Range, check_fields


@dataclass(frozen=True)
class Record:
    share: float = 0.5
    bound: float | None = None
    counts: tuple[int, ...] = (1, 2)


RANGES = {"share": Range(0, 1), "bound": Range(), "counts": Range(low=1, whole=True)}


@pytest.mark.parametrize(
    "fields", [{}, {"share": 0}, {"share": 1}, {"bound": -3}, {"bound": np.float32(2)}]
)
def test_numbers_in_range_are_taken(fields: dict[str, Any]) -> None:
    check_fields(Record(**fields), RANGES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"share": nan}, "Record.share is nan; give a finite number of at least 0 and of at most"),
        ({"share": -0.1}, "Record.share is -0.1;"),
        ({"share": 1.1}, "Record.share is 1.1;"),
        ({"share": None}, "Record.share is None;"),
        ({"share": True}, "Record.share is True;"),
        ({"share": "1"}, "Record.share is '1';"),
        ({"bound": nan}, "Record.bound is nan; give a finite number or None"),
        ({"bound": inf}, "Record.bound is inf;"),
        ({"counts": (1, 0)}, "Record.counts is 0; give a whole number of at least 1"),
        ({"counts": (1.5,)}, "Record.counts is 1.5;"),
    ],
)
def test_others_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_fields(Record(**fields), RANGES)
    assert message in str(caught.value)


def test_open_ends_are_out() -> None:
    between = Range(0, 1, low_open=True, high_open=True)
    between.check("x", 0.5)
    for end in (0, 1):
        with pytest.raises(OptionError, match="give a finite number above 0 and below 1"):
            between.check("x", end)


def test_more_threads_than_any_machine_is_good_for() -> None:
    THREADS.check("threads", 64)
    with pytest.raises(OptionError, match="threads is 100000; give a whole number"):
        THREADS.check("threads", 100_000)
