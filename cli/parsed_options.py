"""Values of options that are more than one word: a name and a value, sizes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from qtool.core.limits import MOST


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
