"""Work is shown where somebody asks for it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from qtool.core.progress import counted, during, showing


def test_nobody_asks() -> None:
    items = [1, 2]
    assert counted("work", items) is items
    with during("work"):
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

    with showing(bars):
        with during("all"):
            assert list(counted("part", [1, 2], 2)) == [1, 2]
        with pytest.raises(ValueError, match="bad"), during("rest"):
            raise ValueError("bad")
    assert list(counted("later", [3])) == [3]
    assert seen == [
        "all None of None", "part 1 of 2", "part 2 of 2", "part done", "all done",
        "rest None of None",
    ]  # fmt: skip
