"""Work is shown where somebody asks for it, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

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

    def bars(title: str, total: int | None) -> Callable[[Iterable[int]], Iterator[int]]:
        def around(items: Iterable[int]) -> Iterator[int]:
            for item in items:
                seen.append(f"{title} {item} of {total}")
                yield item
            seen.append(f"{title} done")

        return around

    with show_progress(bars):
        with track_task("all"):
            assert list(track("part", [1, 2], 2)) == [1, 2]
        with pytest.raises(ValueError, match="bad"), track_task("rest"):
            raise ValueError("bad")
    assert list(track("later", [3])) == [3]
    assert seen == [
        "all None of None", "part 1 of 2", "part 2 of 2", "part done", "all done",
        "rest None of None",
    ]  # fmt: skip
