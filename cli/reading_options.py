"""Options of reading that do nothing for the data of a command are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from qtool.cli.source_options import NO_DATA, context_value

_OPTIONS: Mapping[str, tuple[str, str]] = {
    "folder": ("processor", "processor"),
    "transform": ("transform", "transform"),
    "max_length": ("max_length", "max-length"),
    "padded": ("padded", "pad-to-max-length"),
    "unreadable": ("unreadable", "max-unreadable"),
    "stride": ("stride", "stride"),
    "column": ("column", "column"),
    "classes": ("classes", "classes"),
}
"""Argument of `qtool.load_data` -> option in the context, and its name."""
_SOURCES = ("data", "eval_data", "calibration_data")
_UNUSED = f"{__name__}.unused"


def chosen_options() -> dict[str, Any]:
    """Return the arguments of `load_data` that the user chose."""
    values = {name: context_value(stored) for name, (stored, _) in _OPTIONS.items()}
    return {name: value for name, value in values.items() if value}


def with_used_options(
    source: str, load: Callable[..., Any], chosen: Mapping[str, Any] | None = None
) -> Any:
    """Return data, loaded with the options that it uses.

    Of several sources of a command, each needs to use a part of the options only.

    Args:
        source: the data.
        load: `load_data` of it without options of reading.
        chosen: arguments to try; by default all that the user chose.

    Raises:
        UnusedOptionError: no source of the command uses an option.
    """
    from qtool.frontends.data.unused_options import UnusedOptionError

    chosen = chosen_options() if chosen is None else chosen
    unused: dict[str, set[str]] = click.get_current_context().meta.setdefault(_UNUSED, {})
    try:
        return load(**chosen)
    except UnusedOptionError as error:
        without = unused.setdefault(error.option, set())
        without.add(source)
        if without >= set(_sources()):
            raise
        kept = {n: v for n, v in chosen.items() if _OPTIONS[n][1] != error.option}
    return with_used_options(source, load, kept)


def _sources() -> list[str]:
    """Return the sources of data of the command."""
    values = click.get_current_context().params
    return [values[name] for name in _SOURCES if values.get(name) not in (None, NO_DATA)]


def refuse_reading(but: Collection[str] = ()) -> None:
    """Refuse options of reading, where there is nothing to read.

    Args:
        but: arguments of `load_data`, or their options, that are used nevertheless.

    Raises:
        click.BadParameter: one was given.
    """
    chosen = chosen_options().keys() - {*but}
    options = [option for name, (_, option) in _OPTIONS.items() if name in chosen]
    others = {"samples": "samples", "states": "state"}
    options += [o for name, o in others.items() if name not in but and context_value(name)]
    if options:
        raise click.BadParameter(
            "says how --data is read, and there is none", param_hint=f"--{options[0]}"
        )


def check_batch_size(source: str) -> None:
    """Refuse --batch-size where a function makes all batches.

    Raises:
        click.BadParameter: the option was given.
    """
    context = click.get_current_context()
    chosen = context.get_parameter_source("batch_size")
    functions = [":" in text and not Path(text).exists() for text in _sources()]
    if chosen is ParameterSource.COMMANDLINE and functions and all(functions):
        raise click.BadParameter(
            f"it is for data files, and {source} makes the batches; change it there",
            param_hint="--batch-size",
        )
