"""References to functions and values of modules that are imported when they are first used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


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
