"""Options of commands from the fields of the library's records (`qtool.core.option_records`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from qtool.cli import value_types
from qtool.cli.source_options import Path_
from qtool.cli.value_types import COUNT, COUNTS, Real

from qtool.core.limits import MOST, Range
from qtool.core.option_records import Option, options_of
from qtool.core.records import attribute_texts
from qtool.core.text_files import read_toml_or_json


def parse_fixed(texts: Iterable[str]) -> dict[str, Any]:
    """Parse the values of --fix: JSON numbers, true, false and lists of them."""
    fixed = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            fixed[name] = json.loads(value)
        except ValueError:
            fixed[name] = None
        if not name or not isinstance(fixed[name], int | float | list):
            raise click.BadParameter(
                f"'{text}' is not INPUT=VALUE, with a number, true, false or [NUMBER, ...]",
                param_hint="--fix",
            )
    return fixed


def parse_sizes(text: str) -> list[int]:
    """Parse the value of --shape: "3,224,224"."""
    if not all(part.isdecimal() and 0 < int(part[:20]) <= MOST for part in text.split(",")):
        raise click.BadParameter(f"'{text}' is not SIZE,SIZE,...", param_hint="--shape")
    return [int(part) for part in text.split(",")]


def parse_states(values: tuple[str, ...]) -> Mapping[str, str] | str | None:
    """Parse `stateN=state`, or `auto`; return None for no values."""
    if values == ("auto",):
        return "auto"
    pairs = dict[str, str]()
    for text in values:
        name, _, into = text.partition("=")
        if not name or not into or name in pairs or into in pairs.values():
            raise click.BadParameter(
                f"'{text}' is not OUTPUT=INPUT, of a state of its own, or auto",
                param_hint="--state",
            )
        pairs[name] = into
    return pairs or None


def parse_dynamic(values: tuple[str, ...]) -> Mapping[str, Mapping[int, str]] | None:
    """Parse `x:0=batch`, `x:2` to {"x": {0: "batch", 2: "x_dim2"}}, which are added to the default
    dimensions; return None for no values."""
    from qtool.frontends.torch.example_inputs import AddedSizes

    dims: dict[str, dict[int, str]] = {}
    for text in values:
        place, _, name = text.partition("=")
        key, _, axis = place.rpartition(":")
        if not key or not axis.isdecimal() or not axis.isascii() or len(axis) > 4:
            raise click.BadParameter(
                f"'{text}' is not INPUT:DIM or INPUT:DIM=NAME", param_hint="--dynamic"
            )
        default = "batch" if axis == "0" else f"{key}_dim{axis}"
        dims.setdefault(key, {})[int(axis)] = name or default
    return AddedSizes(dims) if dims else None


F = TypeVar("F", bound=Callable[..., Any])


class _RecipeFile(click.ParamType):
    """A recipe, whose rules are checked before a model is loaded, and that there are any before
    torch is."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path: Path = Path_.convert(value, param, ctx)
        read_toml_or_json(path, "recipe")
        from qtool.planning.recipe import Recipe

        Recipe.of(path)
        return path


_KINDS: Mapping[str, click.ParamType] = {
    "target": value_types.TARGET,
    "observer": value_types.OBSERVER,
    "format": value_types.FORMAT,
    "mode": value_types.MODE,
    "accuracy": value_types.ACCURACY,
    "steps": value_types.STEPS,
    "recipe": _RecipeFile(),
    "path": Path_,
    "choices": value_types.CHOICES,
    "count": COUNT,
    "counts": COUNTS,
}
"""Kind of an option -> the type of its value."""
_PARSED: Mapping[str, Callable[[tuple[str, ...]], Any]] = {
    "dynamic": parse_dynamic,
    "states": parse_states,
    "fixed": parse_fixed,
}
"""Kind of an option -> what its values mean together; the record is made with this."""


def record(argument: str, kind: type[Any], names: str = "") -> Callable[[F], F]:
    """Decorate a command with the options of a record, which it gets as an argument.

    Args:
        argument: name of the argument.
        kind: the record.
        names: its fields, separated by spaces; by default all that are options.
    """
    own, texts = options_of(kind), attribute_texts(kind)
    chosen = {name: own[name] for name in names.split() or own}

    def decorate(function: F) -> F:
        @wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            made = {n: _value(*own[n], values.pop(_parameter(n, own[n][1]))) for n in chosen}
            return function(*args, **values, **{argument: kind(**made)})

        decorated: Any = command
        for name, (default, each) in reversed(chosen.items()):
            decorated = _option(name, default, each, texts[name])(decorated)
        return decorated

    return decorate


def _parameter(name: str, option: Option) -> str:
    return (option.name or name).replace("-", "_")


def _value(default: Any, option: Option, value: Any) -> Any:
    if option.repeated and not value:
        return default
    return _PARSED[option.kind](value) if option.kind in _PARSED else value


def _option(name: str, default: Any, option: Option, text: str) -> Callable[[Any], Any]:
    parameter = _parameter(name, option)
    takes: dict[str, Any] = {"help": text[:1].upper() + text[1:], "metavar": option.metavar}
    if isinstance(default, bool):
        takes["is_flag"] = True
    elif option.repeated:
        takes["multiple"] = True
    else:
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        takes |= {"default": shown, "show_default": shown is not None, "type": _type(option)}
    return click.option(f"--{parameter.replace('_', '-')}", parameter, **takes)


def _type(option: Option) -> click.ParamType | None:
    """Return the type of an option; None for a text."""
    if option.choices:
        return click.Choice(option.choices)
    if option.kind or option.range is None:
        return _KINDS.get(option.kind)
    return number_type(option.range)


def number_type(allowed: Range) -> click.ParamType:
    """Return the type of numbers in a range."""
    ends = (allowed.low, allowed.high)
    low, high = (each if math.isfinite(each) else None for each in ends)
    if allowed.whole:
        return click.IntRange(low and int(low), high and int(high))
    return Real(low, high, min_open=allowed.low_open, max_open=allowed.high_open)
