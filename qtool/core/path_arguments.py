"""What stands where a function takes a path: a number, None or bytes are refused in one sentence,
before any work."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from qtool.core.errors import FileError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NEVER = (bool, int, float, complex, bytes, bytearray, memoryview)


def accepts_paths(*names: str, mixed: str = "") -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function whose arguments of these names are looked at before it is called.

    Args:
        names: of paths, or of lists of them; None is left where it is the default.
        besides: of those that may be something else as well (words separated by spaces): no number,
            no bytes.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return function(*args, **kwargs)  # Python says what is missing
            for name in (n for n in (*names, *mixed.split()) if n in given):
                value, usual = given[name], signature.parameters[name].default
                if value is None and usual is None:
                    continue
                for each in value if isinstance(value, list | tuple) else [value]:
                    _check(name, each, name in names)
            return function(*args, **kwargs)

        return checked

    return decorate


def _check(name: str, value: Any, alone: bool) -> None:
    bad = not isinstance(value, str | os.PathLike) if alone else isinstance(value, _NEVER)
    bad = bad or value is None
    if not bad and isinstance(value, os.PathLike):
        bad = isinstance(os.fspath(value), bytes)
    if bad:
        what = "None" if value is None else f"of the type {type(value).__name__}"
        raise FileError(f"{name} is {what}; give a path as a str or a pathlib.Path")
