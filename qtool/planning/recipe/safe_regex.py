"""Regexes of strangers: only those that match a name in bounded time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from qtool.core.errors import PlanError

_PARSER: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
MOST_OPEN = 4


def check_regex(key: str, said: str, pattern: str) -> None:
    """A regex that matches in bounded time: Python's engine tries every way to divide a name among
    repetitions, which takes for ever where they stand in one another or are many.

    Raises:
        PlanError: it is none, or may take too long.
    """
    try:
        re.compile(pattern)
        nested, count = _open(_PARSER.parse(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise PlanError(f'{key} = "{said[:60]}" is no regex: {error}') from error
    if nested or count > MOST_OPEN:
        why = "repeats what is open itself" if nested else f"has {count} open parts"
        raise PlanError(
            f'{key} = "{said[:60]}" {why}, which may take for ever; write it with at most '
            f"{MOST_OPEN} of *, +, ? and {{m,n}}, none of them and no | inside what is repeated"
        )


def _open(pattern: Any) -> tuple[bool, int]:
    """Whether something that may match in several ways is repeated; and how many such there are."""
    nested, count = False, 0
    for operator, argument in pattern:
        inner = [_open(p) for p in _parts(argument)]
        inside = sum(c for _, c in inner)
        low, high = argument[:2] if str(operator).endswith("REPEAT") else (1, 1)
        nested = nested or any(n for n, _ in inner) or (high > 1 and inside > 0)
        count += inside + (low != high or str(operator) == "BRANCH")
    return nested, count


def _parts(argument: Any) -> Iterator[Any]:
    """A group, a branch and a repetition hold patterns in tuples and lists."""
    if isinstance(argument, _PARSER.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _parts(each)
