"""Parts of the site that are made when it is built, so that they cannot be out of date.

`conf.py` puts each in the place of `MARK` in its page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from inspect import cleandoc
from textwrap import dedent

import click
from qtool.cli.command import Command

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
        if record is not None and record[1] and "--help" not in record[0]:
            option, text = (part.replace("|", r"\|").replace("  ", " ") for part in record)
            yield f"| `{option}` | {_plain(text)} |"


def _plain(text: str) -> str:
    """Text that Markdown is not to read anything into."""
    return re.sub(r"([*_<\[])", r"\\\1", text)


def operators() -> str:
    """What each target does with each operator, from the rows and the tables."""
    from qtool.planning.targets import TARGETS
    from qtool.planning.targets.support_matrix import LEGEND, operator_table

    words = "\n".join(f"- **{word}**: {meaning}" for word, meaning in LEGEND.items())
    return f"{words}\n\n{operator_table(TARGETS.values())}"


PAGES: dict[str, Callable[[], str]] = {"commands": commands, "operators": operators}
"""Page -> what makes its part."""
