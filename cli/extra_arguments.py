"""What a user meant by an argument that a command does not take, or takes once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import click

_MODELS = (".onnx", ".tflite", ".pt2")


def meant(parameters: Sequence[click.Parameter], args: Sequence[str]) -> str:
    """Return how to write the first argument too many, or "".

    Args:
        parameters: what the command takes.
        args: its command line.
    """
    options = {name: each for each in parameters for name in (*each.opts, *each.secondary_opts)}
    free = sum(isinstance(each, click.Argument) for each in parameters)
    last, values = "", list[str]()
    for at, arg in enumerate(args):
        if arg.startswith("-"):
            last, values = arg.partition("=")[0], arg.split("=", 1)[1:]
            continue
        takes = last in options and not getattr(options[last], "is_flag", False)
        if takes and not values:
            values.append(arg)
        elif free:
            free -= 1
        else:
            more = itertools.takewhile(lambda each: not each.startswith("-"), args[at:])
            return _sentence(options, last if takes else "", [*values, *more])
    return ""


def repeated(parameters: Sequence[click.Parameter], args: Sequence[str]) -> dict[str, list[str]]:
    """Return option -> its values, for options that take one and have several different ones."""
    single = {
        name: each.opts[0]
        for each in parameters
        if isinstance(each, click.Option) and not (each.is_flag or each.count or each.multiple)
        for name in each.opts
    }
    values: dict[str, list[str]] = {}
    for arg, following in itertools.pairwise([*args, ""]):
        name, equals, value = arg.partition("=")
        if name in single:
            values.setdefault(single[name], []).append(value if equals else following)
    return {name: each for name, each in values.items() if len({*each}) > 1}


def _sentence(options: dict[str, click.Parameter], last: str, values: Sequence[str]) -> str:
    arg = values[-1]
    if "--json" in options and Path(arg).suffix.lower() == ".json":
        return f"--json prints: write > {arg} behind the command"
    if last and ",..." in (options[last].make_metavar(click.Context(click.Command(""))) or ""):
        return f"separate values with commas: {last} {','.join(values)}"
    if Path(arg).suffix.lower() in _MODELS:
        names = ("--model", "--against", "-o")
    else:
        names = ("--data",) if Path(arg).exists() else ()
    return next((f"write it as {name} {arg}" for name in names if name in options), "")
