"""One odd session does not decide how fast a file is, nor do a few."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.search import measured_speedups
from qtool.search.measured_speedups import MAX_SESSIONS, MIN_SESSIONS, repeat_sessions


def _told(monkeypatch: pytest.MonkeyPatch, medians: list[tuple[float, ...]]) -> list[float]:
    """Sessions that find these ratios, in turns; what each of them was given, in seconds."""
    seen: list[float] = []

    def timed(files: Any, inputs: Any, **options: Any) -> Any:
        found = medians[len(seen) % len(medians)]
        seen.append(options["seconds"])
        ratios = [Ratio(m, m - 0.1, m + 0.1, m - 0.2, m + 0.2) for m in (1.0, *found)]
        return SimpleNamespace(ratios=tuple(ratios))

    monkeypatch.setattr(measured_speedups, "time_files", timed)
    return seen


def test_the_middle_of_the_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _told(monkeypatch, [(1.6, 3.0), (1.0, 3.2), (1.5, 3.1)])
    one, two = measured_speedups.measure_speedups(Path("float"), [Path("a"), Path("b")], (), 0.0)
    assert (one.median, two.median) == (1.5, 3.1)
    assert (one.low, one.high) == (1.0, 1.6), "of the medians of three none is left out"
    assert (two.low, two.high) == (3.0, 3.2)
    assert len(seen) == MIN_SESSIONS


def test_one_session_under_load_does_not_make_the_interval_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = [Ratio(1.07, 1.05, 1.1, 1.0, 1.2), Ratio(1.1, 0.6, 2.59, 0.5, 3.0)]
    sessions.append(Ratio(1.05, 1.02, 1.07, 1.0, 1.2))
    found = measured_speedups._median(sessions)
    assert (found.low, found.median, found.high) == (1.02, 1.07, 1.1)


def test_odd_sessions_do_not_widen_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _told(monkeypatch, [(2.0,)] * (MAX_SESSIONS - 2) + [(0.5,), (9.0,)])
    (one,) = measured_speedups.measure_speedups(Path("float"), [Path("a")], (), 1000.0)
    assert (one.low, one.median, one.high) == (1.9, 2.0, 2.1)
    assert sum(seen) == pytest.approx(1000), "as long as one session of that time"


def test_as_many_sessions_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(measured_speedups.time, "perf_counter", lambda: next(clock))
    assert len(repeat_sessions(lambda: None, 5)) == MIN_SESSIONS + 4
