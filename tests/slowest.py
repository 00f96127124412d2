"""The slowest tests of a run, the skipped ones, and a limit: where the time of `make test` goes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COUNT = 50
MATRIX_TESTS = Path(__file__).with_name("matrix_tests.txt")
"""The slow tests that `make matrix` runs alone, a line each: the first part of their names."""


def slowest(reports: Iterable[pytest.TestReport], count: int = COUNT) -> list[tuple[float, str]]:
    """(seconds of setup, call and teardown, test) of the slowest tests, slowest first."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid] += report.duration
    return sorted(((s, name) for name, s in seconds.items()), reverse=True)[:count]


def write_slowest(reports: Iterable[pytest.TestReport], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{seconds:8.2f} s  {name}\n" for seconds, name in slowest(reports)]
    path.write_text("".join(lines), encoding="utf-8")


def write_skipped(reports: Iterable[pytest.TestReport], path: Path) -> None:
    """Write the tests and modules that were skipped; pytest reads such a file as @FILE."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(dict.fromkeys(f"{r.nodeid}\n" for r in reports)), encoding="utf-8")


@contextmanager
def check_cpu_time(test: pytest.Item, limit: float) -> Iterator[None]:
    """Fail a test without the marker `matrix` that takes more CPU time, with its processes.

    Fixtures of a module do not count: which of its tests is the first differs between runs.
    """
    before = sum(os.times()[:4])
    yield
    seconds = sum(os.times()[:4]) - before
    if seconds > limit and not test.get_closest_marker("matrix"):
        pytest.fail(f"{seconds:.1f} s of CPU: make it quicker, or mark it `matrix`", pytrace=False)
