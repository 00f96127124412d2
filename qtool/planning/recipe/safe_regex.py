"""Untrusted regular expressions: only those that match a name in bounded time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from qtool.core.errors import PlanError
from qtool.core.remedies import CallEdit

_PARSER: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
MAX_VARIABLE_PARTS = 4


def check_regex(key: str, text: str, pattern: str) -> None:
    """Check that a regex is valid and matches in bounded time.

    Python's engine tries every way to divide a name among repetitions, which takes exponential time
    where repetitions are nested or many.

    Args:
        key: the key of the recipe rule, for messages.
        text: the value as the recipe has it, for messages.
        pattern: the regex.

    Raises:
        PlanError: it is invalid, or may take too long.
    """
    try:
        re.compile(pattern)
        nested, count = _variable_parts(_PARSER.parse(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise PlanError(f'{key} = "{text[:60]}" is not a valid regex: {error}') from error
    if nested or count > MAX_VARIABLE_PARTS:
        why = "a repeated part is variable itself" if nested else f"it has {count} variable parts"
        raise PlanError(
            f'{key} = "{text[:60]}" could take for ever to match: {why}',
            CallEdit(
                f"use at most {MAX_VARIABLE_PARTS} of *, +, ? and {{m,n}}, and no | or other "
                "repetition inside them"
            ),
        )


def _variable_parts(pattern: Any) -> tuple[bool, int]:
    """Return whether a repeated part has variable parts, and the number of variable parts."""
    nested, count = False, 0
    for operator, argument in pattern:
        inner = [_variable_parts(p) for p in _subpatterns(argument)]
        inside = sum(c for _, c in inner)
        low, high = argument[:2] if str(operator).endswith("REPEAT") else (1, 1)
        nested = nested or any(n for n, _ in inner) or (high > 1 and inside > 0)
        count += inside + (low != high or str(operator) == "BRANCH")
    return nested, count


def _subpatterns(argument: Any) -> Iterator[Any]:
    """Yield the patterns inside a group, branch or repetition, which hold them in tuples."""
    if isinstance(argument, _PARSER.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _subpatterns(each)
