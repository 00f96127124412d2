"""What a user meant by an argument that a command does not take, or takes once."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from qtool.core.path_arguments import QUANTIZE_CONFIG

_MODELS = (".onnx", ".tflite", ".pt2")


def meant(parameters: Sequence[click.Parameter], args: Sequence[str]) -> str:
    """Return how to write the first argument too many, or "".

    Args:
        parameters: what the command takes.
        args: its command line.
    """
    options = _options(parameters)
    free = sum(isinstance(each, click.Argument) for each in parameters)
    for at, last, values in itertools.islice(_free(options, args), free, None):
        more = itertools.takewhile(lambda each: not each.startswith("-"), args[at:])
        return _sentence(options, last, [*values, *more])
    return ""


def with_float_model(
    command: str, parameters: Sequence[click.Parameter], args: Sequence[str]
) -> str:
    """Return how to type a command line that has a file and its float model as free arguments.

    Args:
        command: name of the command.
        parameters: what it takes.
        args: its command line.

    Returns:
        The command line; "" for another one.
    """
    options = _options(parameters)
    names = [n for n in ("--model", "--against") if n in options and options[n].required]
    free = [args[at] for at, *_ in _free(options, args)]
    if not names or len(free) != 2 or any(each.split("=")[0] in names for each in args):
        return ""
    file, model = sorted(free, key=_place)
    rest = [each for each in args if each not in free]
    return shlex.join(["qtool", command, file, names[0], model, *rest])


def _place(path: str) -> int:
    """Return 0 for what `qtool quantize` surely wrote, 1 for what it may have, 2 for others."""
    suffix = Path(path).suffix.lower()
    if suffix == ".tflite" or (Path(path) / QUANTIZE_CONFIG).is_file():
        return 0
    return 1 if suffix == ".onnx" else 2


def _options(parameters: Sequence[click.Parameter]) -> dict[str, click.Parameter]:
    return {name: each for each in parameters for name in (*each.opts, *each.secondary_opts)}


def _free(
    options: dict[str, click.Parameter], args: Sequence[str]
) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the index of each word that is neither an option nor its value, and the option before
    it, if that takes values, with its values."""
    last, values = "", list[str]()
    for at, arg in enumerate(args):
        if arg.startswith("-"):
            last, values = arg.partition("=")[0], arg.split("=", 1)[1:]
            continue
        takes = last in options and not getattr(options[last], "is_flag", False)
        if takes and not values:
            values.append(arg)
        else:
            yield at, last if takes else "", list(values)


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
