"""Work is shown where somebody asks for it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from qtool.core.progress import show_progress, track, track_task


def test_nobody_asks() -> None:
    items = [1, 2]
    assert track("work", items) is items
    with track_task("work"):
        pass


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
