"""References to functions and values of modules that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def load(where: str) -> Any:
    """Import "module:attribute", and return the attribute."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class OnUse:
    """A function of a module that is imported at the first call.

    Attributes:
        where: "module:attribute".
    """

    where: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return load(self.where)(*args, **kwargs)


class Table(MutableMapping[str, T]):
    """Name -> value, of which some are imported when they are first read."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        """
        Args:
            rows: name -> "module:attribute".
        """
        self._rows: dict[str, str | None] = dict(rows)
        self._values: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._values:
            where = self._rows[name]
            assert where is not None
            self._values[name] = load(where)
        return self._values[name]

    def __setitem__(self, name: str, value: T) -> None:
        self._rows.setdefault(name, None)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._rows[name]
        self._values.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
