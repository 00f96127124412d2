"""Checks of path arguments: numbers, None and bytes are refused before any work."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from qtool.core.errors import FileError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NO_PATH = (bool, int, float, complex, bytes, bytearray, memoryview)


def accepts_paths(*names: str, mixed: str = "") -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function to check its path arguments before it is called.

    Args:
        names: arguments that take a path or a list of paths; None is allowed if it is the default.
        mixed: arguments that also take other objects, separated by spaces: only numbers and bytes
            are refused.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return function(*args, **kwargs)  # raises the error of a wrong call
            for name in (n for n in (*names, *mixed.split()) if n in arguments):
                value, default = arguments[name], signature.parameters[name].default
                if value is None and default is None:
                    continue
                several = "Sequence" in str(signature.parameters[name].annotation)
                if several and isinstance(value, str | os.PathLike):
                    raise FileError(f"{name} is {os.fspath(value)!r}; give a list of paths")
                for each in value if several and isinstance(value, list | tuple) else [value]:
                    _check(name, each, name in names)
            return function(*args, **kwargs)

        return checked

    return decorate


def _check(name: str, value: Any, only_path: bool) -> None:
    bad = not isinstance(value, str | os.PathLike) if only_path else isinstance(value, _NO_PATH)
    bad = bad or value is None
    if not bad and isinstance(value, os.PathLike):
        bad = isinstance(os.fspath(value), bytes)
    if bad:
        what = "None" if value is None else f"of the type {type(value).__name__}"
        raise FileError(f"{name} is {what}; give a path as a str or a pathlib.Path")
