"""The slowest tests of a run, written to a file: where the time of `make test` goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

COUNT = 50


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
