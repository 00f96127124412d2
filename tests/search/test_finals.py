"""The finalists are compared within one session, and a search that goes on does not ask again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qtool
from qtool.analysis import latency
from qtool.analysis.latency import Ratio, Timing
from qtool.search import loop
from qtool.search.archive import Evaluated
from qtool.search.finals import Beside, finalists, timed_anew
from qtool.search.goals import TuneGoals
from qtool.search.judge import Score
from tests.search.nets import ladder

GOALS = TuneGoals(max_drop=0.01)


def _file(key: str, speed: float, drop: float = 0.0) -> Evaluated:
    score = Score(100, 30.0, 1e-3, "top-1", True, 0.9, 0.9 + drop, drop, drop, drop)
    return Evaluated(key, 1, "fast", (), score, speed, speed, speed, 1000, 0.5, 1.0, 0.0, 0.0)


def test_those_that_keep_the_goal_and_may_be_the_fastest() -> None:
    found = (_file("a", 2.0), _file("b", 1.8), _file("c", 1.5), _file("lost", 3.0, 0.02))
    assert [e.key for e in finalists(GOALS, found)] == ["a", "b"]
    assert not finalists(GOALS, (found[0], found[2]))  # one alone: nothing to compare
    assert not finalists(replace(GOALS, smallest=True), found)  # no time decides


def test_the_speeds_of_one_session_decide() -> None:
    found = finalists(GOALS, (_file("a", 2.17), _file("b", 1.84)))
    beside = Beside.of(found, [Ratio(r, r - 0.1, r + 0.1, r, r) for r in (1.9, 2.1)])
    again = timed_anew(found, beside)
    assert [e.speedup for e in again] == [1.9, 2.1]
    assert GOALS.best(found).key == "a"
    assert GOALS.best(again).key == "b"


def test_what_was_timed_beside_each_other_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two levels of recovery are the same kernels: the second seemed faster when it was evaluated,
    and in the session of both it is not."""
    net, seen, asked = ladder()
    captured, sessions = qtool.capture_model(net, seen[0]), []

    def told(files: Any, inputs: Any, **more: Any) -> Timing:
        sessions.append([Path(f).stem for f in files])
        speeds = [1.0, 1.5, 1.4] if len(files) == 3 else [1.0, 1.2 + 0.1 * len(sessions)]
        ratios = tuple(Ratio(s, s, s, s, s) for s in speeds[: len(files)])
        return replace(latency.timed(files, inputs, seconds=0, least_rounds=3), ratios=ratios)

    monkeypatch.setattr(loop, "timed", told)

    def tuned() -> qtool.TunedModel:
        options = qtool.SearchOptions(evaluations=2, timing=0.01)
        goals = qtool.TuneGoals(min_sqnr=20.0)
        return qtool.tune(
            captured, seen, asked, goals=goals, options=options, archive=tmp_path / "kept"
        )

    first = tuned()
    assert sessions[-1][1:] == [e.key for e in reversed(first.evaluated)]
    assert [e.speedup for e in first.evaluated] == [1.4, 1.5]
    sessions.clear()
    again = tuned()
    assert not sessions
    assert (again.best, again.evaluated) == (first.best, first.evaluated)
