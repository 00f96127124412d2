"""A sequence whose items are made when they are read, as those on disk are too large to hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """Items by number.

    Args:
        item: number -> item; called at each access.
        numbers: numbers of the items, in order.
    """

    def __init__(self, item: Callable[[int], T], numbers: Sequence[int]) -> None:
        self._item, self._numbers = item, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> LazySequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | LazySequence[T]:
        if isinstance(index, slice):
            return LazySequence(self._item, self._numbers[index])
        return self._item(self._numbers[index])
