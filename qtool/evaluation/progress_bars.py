"""Progress bars of measurements: the type of the factory, and one that draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

ProgressBars = Callable[[str, int | None], Callable[[Iterable[Any]], Iterable[Any]]]


def no_bars(title: str, total: int | None) -> Callable[[Iterable[Any]], Iterable[Any]]:
    return lambda items: items
