"""Work is shown where somebody asks for it, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from qtool.core.progress import show_progress, track, track_task


def test_stages_are_logged_whether_or_not_they_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="qtool")
    with track_task("all"):
        assert list(track("part", [1, 2])) == [1, 2]
    with pytest.raises(ValueError, match="bad"), track_task("fails"):
        raise ValueError("bad")
    with track_task("next"):
        pass
    logged = [(r.levelname, re.sub(r"\d\.\d s", "", r.getMessage())) for r in caplog.records]
    assert logged == [("DEBUG", "part:  (2 steps)"), ("INFO", "all: "), ("INFO", "next: ")]


def test_work_in_work_is_shown() -> None:
    seen: list[str] = []

    @contextmanager
    def display(title: str, total: int | None) -> Iterator[Callable[[], None]]:
        seen.append(f"{title} of {total}")
        yield lambda: seen.append(f"{title} advanced")
        seen.append(f"{title} done")

    with show_progress(display):
        with track_task("all"):
            assert list(track("part", [1, 2])) == [1, 2]
        with pytest.raises(ValueError, match="bad"), track_task("rest"):
            raise ValueError("bad")
    assert list(track("later", [3])) == [3]
    assert seen == [
        "all of None", "part of 2", "part advanced", "part advanced", "part done",
        "all advanced", "all done", "rest of None",
    ]  # fmt: skip
