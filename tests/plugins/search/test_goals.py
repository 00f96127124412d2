"""Goals of a search: which files meet them, which file is the best, and invalid goals."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest

import qtool
from qtool.core.errors import OptionError
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.plugins.search.judge import Score, Trial
from tests.plugins.search.measured import top_1


def trial(
    key: str = "a",
    *,
    drop: float | None = None,
    high: float | None = None,
    sqnr_db: float = 40.0,
    speedup: float = 2.0,
    speedup_high: float | None = None,
    size: int = 1000,
    noise: float | None = None,
    share: float = 1.0,
) -> Trial:
    noise = 10 ** (-sqnr_db / 10) if noise is None else noise
    metric = None if drop is None else top_1(drop, None if high is None else -high, high)
    score = Score(100, sqnr_db, noise, metric)
    ratio = Ratio(speedup, speedup, speedup_high or speedup, speedup, speedup)
    return Trial(key, "fast", (), score, ratio, size, share, 1.0)


def test_without_a_bound_on_the_loss_it_is_one_point() -> None:
    share = trial(drop=0.0).score.metric
    assert share is not None
    other = replace(share, percent=False, values=(20.0, 20.0))
    assert qtool.TuneGoals(min_speedup=2.0).drop_limit(share) == 0.01
    assert qtool.TuneGoals().drop_limit(other) == pytest.approx(0.2)
    assert qtool.TuneGoals(max_drop=0.5).drop_limit(other) == 0.5
    goals = qtool.TuneGoals(min_sqnr=30.0)
    assert goals.drop_limit(share) is None
    assert goals.max_noise == pytest.approx(1e-3)
    assert qtool.TuneGoals().max_noise is None


@pytest.mark.parametrize(
    ("goals", "missed"),
    [
        ({"max_drop": 0.02}, []),
        ({"max_drop": 0.01}, ["max_drop"]),
        ({"min_sqnr": 50.0}, ["min_sqnr"]),
        ({"min_speedup": 3.0, "min_sqnr": 1.0}, ["min_speedup"]),
        ({"max_size": 900, "min_sqnr": 1.0}, ["max_size"]),
        ({"max_drop": 0.01, "max_size": 900, "min_sqnr": 30.0}, ["max_drop", "max_size"]),
    ],
)
def test_goals_that_a_file_misses(goals: dict[str, Any], missed: list[str]) -> None:
    """The upper end of the interval of the drop is compared, not the drop."""
    file = trial(drop=0.005, high=0.015)
    tuned = qtool.TuneGoals(**goals)
    assert list(tuned.misses(file)) == missed
    assert tuned.is_met(file) == (not missed)
    assert tuned.meets_accuracy(file) == (not {"max_drop", "min_sqnr"} & set(missed))
    assert len(tuned.describe_misses(file)) == len(missed)


@pytest.mark.parametrize(
    ("goals", "file", "text"),
    [
        ({"max_drop": 0.5}, {"drop": nan}, "no metric was measured"),
        ({"max_drop": 0.5}, {"drop": 0.0, "high": nan}, "no metric was measured"),
        ({"min_sqnr": -300.0}, {"sqnr_db": nan}, "SQNR is nan dB"),
        ({"min_sqnr": 30.0}, {"sqnr_db": -200.0, "noise": 0.0}, "SQNR could not be measured"),
        ({"min_sqnr": 1.0, "min_speedup": 0.5}, {"speedup": nan}, "speed-up is nanx"),
    ],
)
def test_what_was_not_measured_meets_no_goal(
    goals: dict[str, Any], file: dict[str, Any], text: str
) -> None:
    tuned, own = qtool.TuneGoals(**goals), trial(**file)
    assert not tuned.is_met(own)
    assert tuned.describe_misses(own)[0].startswith(text)


def test_a_missed_goal_is_described_by_value_and_goal() -> None:
    goals = qtool.TuneGoals(max_drop=0.01, min_sqnr=50.0, min_speedup=3.0, max_size=900)
    assert goals.describe_misses(trial(drop=0.02)) == [
        "top-1 loses 2 points, goal is a loss of at most 1 points",
        "SQNR is 40.0 dB, goal is 50 dB",
        "speed-up is 2.00x, goal is 3x",
        "size is 1000 bytes, goal is 900 bytes",
    ]
    assert qtool.TuneGoals(max_drop=0.01).describe_misses(trial()) == [
        "no metric was measured; pass labels or an evaluation function"
    ]


def test_a_goal_that_every_share_meets_is_refused() -> None:
    with pytest.raises(OptionError, match=r"1 allows 100 points of a share.*0\.01 is one point"):
        qtool.TuneGoals(max_drop=1).is_met(trial(drop=0.0))


def test_the_fastest_or_smallest_of_the_files_that_meet_the_goals_is_best() -> None:
    fast = trial("fast", speedup=3.0, size=2000)
    small = trial("small", speedup=1.5, size=500)
    inexact = trial("inexact", sqnr_db=20.0, speedup=9.0, size=100)
    files = [small, inexact, fast]
    assert qtool.TuneGoals(min_sqnr=30.0).best(files) is fast
    assert qtool.TuneGoals(min_sqnr=30.0, smallest=True).best(files) is small
    unreachable = qtool.TuneGoals(min_sqnr=60.0)
    assert unreachable.nearest(files) == [small, fast]
    assert unreachable.best(files) is fast


def test_of_equally_fast_files_the_one_with_most_integer_macs_is_best() -> None:
    first = trial("first", speedup=2.0, share=0.5)
    close = trial("close", speedup=1.97, share=0.9)
    overlapping = trial("overlapping", speedup=1.85, speedup_high=2.1, share=1.0)
    slower = trial("slower", speedup=1.85, share=1.0)
    goals = qtool.TuneGoals(min_sqnr=30.0)
    assert goals.best([first, close, slower]) is close
    assert goals.best([first, close, overlapping]) is overlapping
    exact = trial("exact", share=0.5, sqnr_db=60.0)
    assert goals.best([first, exact]) is exact


def test_of_files_that_miss_a_bound_alone_the_fastest_is_the_best() -> None:
    """The bound of an interval is no loss: a fast file that may meet the goal beats a slow one that
    is nearer to proving it."""
    fast = trial("fast", drop=0.002, high=0.0059, speedup=2.12)
    slow = trial("slow", drop=0.001, high=0.0035, speedup=1.2)
    worse = trial("worse", drop=0.004, high=0.005, speedup=3.0)
    goals = qtool.TuneGoals(max_drop=0.003)
    assert goals.best([slow, worse, fast], 2000).key == "fast"
    proved = trial("proved", drop=0.001, high=0.003, speedup=1.1)
    assert goals.best([slow, worse, fast, proved], 2000).key == "proved"


def test_a_file_that_is_neither_faster_nor_smaller_than_float_is_no_result() -> None:
    goals = qtool.TuneGoals(min_sqnr=30.0)
    useless = trial("useless", sqnr_db=60.0, speedup=0.96, speedup_high=0.98, size=950)
    useless = replace(useless, choices=("float", "float", "static"))
    useful = trial("useful", sqnr_db=20.0, speedup=2.0, size=950)
    assert goals.best([useless, useful], 1000).key == "useful"
    assert goals.best([useless], 1000).key == "useless"
    assert not goals.gains(useless, 1000)
    assert goals.describe_misses(useless, 1000) == [
        "it is slower than float (0.96x) and not much smaller"
    ]
    assert goals.gains(replace(useless, size=890), 1000)
    assert goals.gains(replace(useless, choices=("float", "static")), 1000)
    assert goals.gains(replace(useless, speed=replace(useless.speed, high=1.0)), 1000)


@pytest.mark.parametrize(
    ("drop", "high", "proof"),
    [
        (0.002, 0.0059, "; some 1,600 would prove this one"),  # 100 x (3.9 / 1)^2 = 1,521
        (0.0, 0.006, "; some 400 would prove this one"),
        (0.003, 0.0059, ""),
        (0.00299, 0.0059, ""),  # 8 million
    ],
)
def test_how_many_samples_would_prove_a_goal(drop: float, high: float, proof: str) -> None:
    (text,) = qtool.TuneGoals(max_drop=0.003).describe_misses(trial(drop=drop, high=high))
    assert text.endswith(f"goal is a loss of at most 0.3 points{proof}")
