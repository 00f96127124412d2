"""Options of commands from a file, for runs that can be reviewed and repeated: --config qtool.toml.

A table for each command, and keys above the tables for every command that has them:

    model = "examples.digits.network:digits_net"

    [quantize]
    data = "calib_data/digits"
    min-sqnr = 40

click's `default_map` does the rest: the command line wins over the file, the file over defaults. A
file is read only if it is named: a model is code, and a `qtool.toml` in the folder of a stranger
must not decide what a command runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from qtool.core.errors import FileError
from qtool.core.option_names import unknown_name
from qtool.core.remedies import OtherFile
from qtool.core.text_files import read_toml_or_json

_NOT_IN_FILES = frozenset({"help", "help-all", "config", "verbose", "quiet", "log-level"})
_TEXTS = ("a text", "a number", "true or false", "a list of these")


def config_option() -> click.Option:
    """Return the option --config of a command."""
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        is_eager=True,  # before the options whose defaults it sets
        expose_value=False,
        callback=_read,
        help="Read options from this file; the command line wins.",
    )


def _read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    commands = {name: group.get_command(ctx, name) for name in group.list_commands(ctx)}
    content = read_toml_or_json(path, "configuration")
    if not isinstance(content, dict):
        raise FileError(f"{path}: a configuration is a table of options, not {content!r:.40}")
    known = {name: parameters_of(command) for name, command in commands.items() if command}
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    for name in tables:
        if name not in known:
            raise FileError(f"{path}: {unknown_name('command', name, known)}")
    _check_keys(path, "", shared, {key for each in known.values() for key in each})
    for name, table in tables.items():
        _check_keys(path, f"[{name}] ", table, known[name])
    own = known[ctx.command.name or ""]
    values = {
        **{key: value for key, value in shared.items() if _spelled(key) in own},
        **tables.get(ctx.command.name or "", {}),
    }
    ctx.default_map = {
        own[_spelled(key)].name or "": _value(own[_spelled(key)], value, path, key)
        for key, value in values.items()
    }


def parameters_of(command: click.Command) -> dict[str, click.Parameter]:
    """Return the key in a file -> the argument or option of a command."""
    return {
        key: parameter
        for parameter in command.params
        for key in _keys(parameter)
        if key not in _NOT_IN_FILES
    }


def _keys(parameter: click.Parameter) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [_spelled(parameter.name or "")]
    return [name.removeprefix("--") for name in parameter.opts if name.startswith("--")]


def _spelled(key: str) -> str:
    return key.replace("_", "-")


def _check_keys(path: Path, table: str, values: Mapping[str, Any], known: Iterable[str]) -> None:
    names = sorted(known)
    for key in values:
        if _spelled(key) not in names:
            raise FileError(f"{path}: {table}{unknown_name('key', key, names)}")


def _value(parameter: click.Parameter, value: Any, path: Path, key: str) -> Any:
    """Return a value as click takes it: text as on the command line, several in a list."""
    several = parameter.multiple or parameter.nargs != 1
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float | bool) for each in values):
        raise FileError(f"{path}: {key} is {value!r:.40}", OtherFile(f"give {', '.join(_TEXTS)}"))
    if getattr(parameter, "is_flag", False):
        return value
    texts = [_located(parameter, str(each), path.parent) for each in values]
    return texts if several else ",".join(texts)


def _located(parameter: click.Parameter, text: str, folder: Path) -> str:
    """Return a relative path from the folder of the file.

    Options such as --model take names, too: what exists in that folder is a path.
    """
    place = folder / text
    try:
        is_path = isinstance(parameter.type, click.Path) or (
            isinstance(parameter.type, click.types.StringParamType) and place.exists()
        )
    except (OSError, ValueError):  # a name that no path can have
        return text
    return str(place) if is_path and text else text
