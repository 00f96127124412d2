"""The lists of slow and skipped tests, and the limit of CPU time."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.slowest import MATRIX_TESTS, check_cpu_time, slowest, write_skipped, write_slowest


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


def test_a_skipped_test_is_listed_once(tmp_path: Path) -> None:
    write_skipped(REPORTS, tmp_path / "build" / "skipped.txt")
    assert (tmp_path / "build" / "skipped.txt").read_text() == "a\nb\nc\n"


@pytest.mark.parametrize(("mark", "limit"), [(None, 100.0), ("matrix", 0.0)])
def test_no_limit_for_a_quick_or_a_marked_test(mark: str | None, limit: float) -> None:
    with check_cpu_time(item(mark), limit):
        burn()


def test_a_test_above_the_limit_fails() -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="make it quicker, or mark it `matrix`"),
        check_cpu_time(item(None), 0.0),
    ):
        burn()


def item(mark: str | None) -> SimpleNamespace:
    return SimpleNamespace(get_closest_marker=lambda name: mark if name == mark else None)


def burn() -> None:
    """Take CPU time that the clock of the system counts."""
    before = os.times()
    while os.times().user == before.user:
        pass


def test_the_matrix_names_tests_that_are_there() -> None:
    """A folder, a file, a function of it, or the begin of a case's name."""
    lines = MATRIX_TESTS.read_text("utf-8").splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        file, _, function = line.partition("::")
        assert (MATRIX_TESTS.parents[1] / file).exists(), line
        name = function.partition("[")[0]
        assert not name or f"def {name}(" in (MATRIX_TESTS.parents[1] / file).read_text("utf-8"), (
            line
        )
