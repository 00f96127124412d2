"""Timings: what is made of the times. No test looks at how long anything takes."""

import copy
import itertools
import time
from functools import partial

import numpy as np
import pytest

from qtool.backends.session import time_calls
from qtool.evaluation.latency import interleaved_timing
from qtool.evaluation.latency.interleaved_timing import clock_for, time_files


class Pretended:
    """A session whose runs call a function."""

    def __init__(self, call):
        self.call = call

    def seconds(self, arrays, times, clock):
        return time_calls(self.call, times, clock)


def pretend(monkeypatch, *columns):
    """Rounds with these times instead of measured ones."""
    rounds = (list(row) for row in zip(*map(itertools.cycle, columns), strict=False))
    monkeypatch.setattr(interleaved_timing, "open_model", lambda *_: Pretended(int))
    monkeypatch.setattr(interleaved_timing, "_rounds", lambda *a: rounds)


def test_ratio_is_of_the_same_round(monkeypatch):
    """The machine slows down threefold every other round; both models feel it alike."""
    pretend(monkeypatch, [2e-3, 6e-3], [1e-3, 3e-3])
    found = time_files(["a", "b"], [np.zeros((4, 2))], seconds=0)
    assert found.ratios[1].median == found.ratios[1].low == found.ratios[1].high == pytest.approx(2)
    assert found.models[0].low == pytest.approx(2.0)
    assert found.models[0].high == pytest.approx(6.0)
    assert (found.batch, found.rounds) == (4, interleaved_timing.MIN_ROUNDS)


def test_the_two_times_have_their_ratio(monkeypatch):
    """Medians of each model alone would be 3 ms and 1.5 ms, of rounds under different load."""
    pretend(monkeypatch, [1e-3, 3e-3, 3e-3], [1e-3, 1e-3, 1.5e-3])
    timing = time_files(["a", "b"], [np.zeros((1, 1))], seconds=0)
    times, ratio = [s.median for s in timing.models], timing.ratios[1].median
    assert ratio == 2
    assert times == [pytest.approx(3.0), pytest.approx(3.0 / ratio)]


def test_one_thread_is_timed_without_other_processes():
    assert clock_for(1) is interleaved_timing.thread_clock
    assert clock_for(2) is clock_for(0) is time.perf_counter


def test_goes_on_until_the_ratio_is_known(monkeypatch):
    noise = np.random.default_rng(0).normal(1e-3, 1e-4, 4000)
    counts = []
    for precision in (0.2, 0.02, 0.01):
        pretend(monkeypatch, [1e-3], list(noise))
        found = time_files(["a", "b"], [np.zeros((1, 1))], seconds=60, precision=precision)
        assert found.ratios[1].width <= precision
        counts.append(found.rounds)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_stops_when_the_time_is_up(monkeypatch):
    pretend(monkeypatch, [1e-3], [1e-3, 5e-3])
    found = time_files(["a", "b"], [np.zeros((1, 1))], seconds=0, precision=1e-6)
    assert found.rounds == interleaved_timing.MIN_ROUNDS
    assert found.ratios[1].width > 1e-6


def test_order_rotates():
    order = []
    clock = iter(range(10**6)).__next__
    models = [Pretended(partial(order.append, name)) for name in "abc"]
    rounds = interleaved_timing._rounds([partial(m.seconds, [], clock=clock) for m in models])
    warm = 3 * interleaved_timing.WARM_UP
    assert all(len(row) == 3 for row in itertools.islice(rounds, 3))
    assert order[warm:] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert next(rounds) == [1, 1, 1]  # by the clock that is given


def test_a_session_in_another_process_measures_itself():
    class Elsewhere:
        def seconds(self, arrays, times, clock):
            return 0.25 * times

    rounds = interleaved_timing._rounds([partial(Elsewhere().seconds, [], clock=pytest.fail)] * 2)
    assert next(rounds) == [0.25, 0.25]


def test_runs_that_are_shorter_than_a_tick_of_the_clock_run_in_a_row(monkeypatch):
    """A clock that ticks every ten runs reads 0 for most single ones: no ratio is made of those."""
    ran = itertools.count(1)

    monkeypatch.setattr(interleaved_timing, "open_model", lambda *_: Pretended(lambda: next(ran)))

    def clock() -> float:
        return copy.copy(ran).__next__() // 10 * 1e-3

    found = time_files(["a", "b"], [np.zeros(1)], seconds=0, clock=clock)
    assert all(np.isfinite([r.median, r.low, r.high]).all() for r in found.ratios)
    assert all(0 < s.median < 1 for s in found.models)


def test_a_clock_that_stands_still_gives_no_warning(monkeypatch):
    monkeypatch.setattr(interleaved_timing, "open_model", lambda *_: Pretended(int))
    found = time_files(["a", "b"], [np.zeros(1)], seconds=0, clock=lambda: 0.0)
    assert found.ratios[1].median == 1.0
