"""Parts of the site that are made when it is built, so that they cannot be out of date.

`conf.py` puts each in the place of `MARK` in its page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from inspect import cleandoc
from textwrap import dedent
from types import UnionType
from typing import Any, Union, get_args, get_origin

import click
from qtool.cli.command import Command

from qtool.core.records import is_record, json_fields, summary

__all__ = ["MARK", "PAGES"]

_HEAD = ("| option | what it does |", "|---|---|")
MARK = "<!-- the rest is made from the code when the site is built -->"


def commands() -> str:
    """Every command with its options, from the commands themselves."""
    from qtool.cli import main

    context = click.Context(main, info_name="qtool", **main.context_settings)
    parts = ["\n".join(_table(main, context))]
    for name in main.list_commands(context):
        found = main.get_command(context, name)
        assert found is not None
        parts += _command(found, click.Context(found, info_name=name, parent=context))
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, context: click.Context) -> list[str]:
    text, _, example = cleandoc(command.help or "").replace("\b\n", "").partition("Example:\n")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    shown = dedent(example.rstrip())
    return [
        f"## qtool {context.info_name}",
        _plain(text.strip()),
        f"```text\n{usage}\n```",
        f"```sh\n{shown}\n```",
        "\n".join(_grouped(command, context)),
    ]


def _grouped(command: click.Command, context: click.Context) -> Iterator[str]:
    """One table with a heading row for each group of the command's help."""
    assert isinstance(command, Command)
    yield from _HEAD
    for name, parameters in command.groups(context).items():
        yield f"| **{name}** | |"
        yield from _rows(parameters, context)


def _table(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from _HEAD
    yield from _rows(command.get_params(context), context)


def _rows(parameters: Iterable[click.Parameter], context: click.Context) -> Iterator[str]:
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is not None and record[1] and not record[0].endswith(("--help", "--help-all")):
            option, text = (part.replace("|", r"\|").replace("  ", " ") for part in record)
            yield f"| `{option}` | {_plain(text)} |"


def _plain(text: str) -> str:
    """Text that Markdown is not to read anything into."""
    return re.sub(r"([*_<\[])", r"\\\1", text)


def operators() -> str:
    """What each target does with each operator, from the rows and the tables."""
    from docs.support_matrix import LEGEND, operator_table
    from qtool.planning.targets import TARGETS

    words = "\n".join(f"- **{word}**: {meaning}" for word, meaning in LEGEND.items())
    return f"{words}\n\n{operator_table(TARGETS.values())}"


def json_documents() -> str:
    """The JSON of every command, from the dataclasses that it is written from."""
    from qtool.cli.document_table import documents
    from qtool.cli.documents import Envelope, Error

    nested: dict[str, type] = {}
    parts = ["## All commands", _json_table((Envelope,), nested)]
    parts += ["If the command fails, these keys follow:", _json_table((Error,), nested)]
    for command, alternatives in documents().items():
        parts.append(f"## qtool {command}")
        for i, classes in enumerate(alternatives):
            parts += ["Or:"] if i else []
            parts.append(_json_table(classes, nested))
    parts.append("## Objects")
    shown: set[str] = set()
    while rest := [name for name in nested if name not in shown]:
        for name in rest:  # a table may name further classes
            shown.add(name)
            parts += [f"### {name}", _plain(summary(nested[name]))]
            parts.append(_json_table((nested[name],), nested))
    return "\n\n".join(parts) + "\n"


def _json_table(classes: Sequence[type], nested: dict[str, type]) -> str:
    fields = {key: field for kind in classes for key, field in json_fields(kind).items()}
    rows = [
        f"| `{key}` | {_type_text(hint, nested)} | {_cell(text or key.replace(chr(95), chr(32)))} |"
        for key, (hint, text) in fields.items()
    ]
    return "\n".join(["| key | value | meaning |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return _plain(text.replace("None", "null")).replace("|", r"\|")


_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "text", type(None): "null"}


def _type_text(hint: Any, nested: dict[str, type]) -> str:
    """A type in words; classes are links to their tables."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_type_text(a, nested) for a in arguments)
    if origin in (tuple, list):
        each = dict.fromkeys(_type_text(a, nested) for a in arguments if a is not ...)
        return f"list of {' and '.join(each)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object, name to {_type_text(arguments[1], nested)}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{member.value}`" for member in hint)
    if hasattr(hint, "JSON_FORM"):
        return str(hint.JSON_FORM)
    if is_record(hint):
        nested.setdefault(hint.__name__, hint)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return _JSON_TYPES.get(hint, "any" if hint is Any else "text")


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "report": json_documents,
    "targets": operators,
}
"""Page -> what makes its part."""
