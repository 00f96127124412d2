"""Commands with defaults that take less time: what a test does not say itself."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
import pytest
from qtool.cli import main

MOMENT = {"--seconds": 0.05, "--accuracy": "fast"}
"""Speeds are compared for a moment, and no recovery step runs."""


def commands() -> list[str]:
    return main.list_commands(click.Context(main))


@contextmanager
def quick_commands(defaults: Mapping[str, object] = MOMENT) -> Iterator[None]:
    """Give the options of all commands these defaults, by name."""
    context = click.Context(main)
    with pytest.MonkeyPatch.context() as patch:
        for name in commands():
            command = main.get_command(context, name)
            for option in command.params:
                for default in defaults.keys() & option.opts:
                    patch.setattr(option, "default", defaults[default])
        yield
