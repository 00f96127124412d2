"""Options as fields of records, which commands and signatures read: a name, a default, a range and
a help text (that of the docstring) stand once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from qtool.core.limits import Range, check_fields

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_OPTION = "option"


@dataclass(frozen=True)
class Option:
    """What a field of a record takes on the command line.

    Attributes:
        name: the option, where it is not the field's name; "" for that.
        kind: kind of its values, of `qtool.cli.records`; "" for that of the default or the range.
        range: numbers that it takes.
        choices: all values; () for others.
        repeated: the option takes one of several values at a time.
        metavar: value in the help.
    """

    name: str = ""
    kind: str = ""
    range: Range | None = None
    choices: tuple[str, ...] = ()
    repeated: bool = False
    metavar: str | None = None


def option(default: T, name: str = "", **takes: Any) -> T:
    """Return a field of a record with a default; takes: of `Option`."""
    return field(default=default, metadata={_OPTION: Option(name, **takes)})


def options_of(record: type[Any]) -> dict[str, tuple[Any, Option]]:
    """Return name of a field -> its default, and what it takes; others are left out."""
    made = {each.name: (each.default, each.metadata.get(_OPTION)) for each in fields(record)}
    return {name: (default, own) for name, (default, own) in made.items() if own is not None}


class OptionRecord:
    """Base of records of options, which are frozen dataclasses: their ranges are checked."""

    def __post_init__(self) -> None:
        own = options_of(type(self)).items()
        check_fields(self, {name: each.range for name, (_, each) in own if each.range})


def keywords_of(record: type[Any], *but: str) -> Callable[[F], F]:
    """Decorate a function whose **keywords are fields of a record: its signature lists them.

    Args:
        record: a dataclass.
        but: names of fields that are no keywords.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        keyword = inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(each.name, keyword, default=each.default, annotation=each.type)
            for each in fields(record)
            if each.name not in (*but, *signature.parameters)
        ]
        shown = signature.replace(parameters=[*own, *more])

        @wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            shown.bind(*arguments, **keywords)  # the error of a wrong call
            return function(*arguments, **keywords)

        made: Any = checked
        made.__signature__ = shown
        return made  # type: ignore[no-any-return]  # of the type of the function

    return decorate


def arguments_of(other: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Decorate a function that passes its arguments on to another one: it has its signature."""

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(other).replace(return_annotation=returned)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate
