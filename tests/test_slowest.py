"""The list of the slowest tests adds up what a test takes, and keeps the slowest alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slowest import slowest, write_slowest


def report(name: str, when: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=name,
        location=("file.py", 1, name),
        keywords={},
        outcome="passed",
        longrepr=None,
        when=when,
        duration=seconds,
    )


REPORTS = [
    report("a", "setup", 1.0),
    report("a", "call", 2.0),
    report("b", "call", 5.0),
    report("c", "call", 0.5),
]


def test_phases_of_a_test_are_added_up() -> None:
    assert slowest(REPORTS) == [(5.0, "b"), (3.0, "a"), (0.5, "c")]


def test_only_the_slowest_are_kept() -> None:
    assert slowest(REPORTS, 1) == [(5.0, "b")]


def test_the_file_has_one_line_for_each(tmp_path: Path) -> None:
    file = tmp_path / "build" / "slowest.txt"
    write_slowest(REPORTS, file)
    assert file.read_text().splitlines()[0] == "    5.00 s  b"
