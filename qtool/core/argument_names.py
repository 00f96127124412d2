"""How the user spells an argument: an option on the command line, a keyword in Python.

Sentences for users name arguments by `argument`, so that everybody reads what they can write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from shlex import quote
from typing import TypeVar

T = TypeVar("T")

_KEYWORDS = {
    "-o": "path",
    "--processor": "folder",
    "--pad-to-max-length": "padded",
    "--eval": "function",
    "--eval-data": "evaluation",
    "--state": "states",
    "--cpu": "cpus",
    "--shape": "qtool.capture_model(model, batch)",
    "--fix": "qtool.load_model(path, fixed={input: value})",
    "--noise-input": "qtool.noise_input(model)",
}
"""Option -> keyword or call, where it is not the option's name."""

_on_command_line = False


@contextmanager
def options_in_messages() -> Iterator[None]:
    """Spell arguments as options, for the time of a command."""
    global _on_command_line  # noqa: PLW0603  # threads of a command read it, too
    before, _on_command_line = _on_command_line, True
    try:
        yield
    finally:
        _on_command_line = before


def python_only(*remedies: T) -> tuple[T, ...]:
    """Return what a user of Python can do; nothing in a command, which has no such argument."""
    return () if _on_command_line else remedies


def argument(option: str, value: object = None) -> str:
    """Return an argument as the user spells it.

    Args:
        option: its name on the command line, such as "--batch-size".
        value: value to show with it, a tuple for an option that repeats; None for the name alone.

    Returns:
        "--batch-size 8" in a command, quoted for a shell; "batch_size=8" in Python, and
        "'batch_size'" without value.
    """
    if _on_command_line:
        values = value if isinstance(value, tuple) else (value,)
        return option if value is None else " ".join(f"{option} {quote(str(v))}" for v in values)
    name = _KEYWORDS.get(option, option.removeprefix("--").replace("-", "_"))
    if value is not None and not name.endswith(")"):
        return f"{name}={_in_python(option, value)!r}"
    return name if name.endswith(")") else f"'{name}'"


def _in_python(option: str, value: object) -> object:
    """Return the value of an option as Python has it, where it is not the one of the command."""
    if option == "--recover":
        return [value]
    if option == "--dynamic" and isinstance(value, tuple):
        return _dynamic_sizes(value)
    return dict([str(value).split("=")]) if option == "--state" else value


def _dynamic_sizes(dimensions: Iterable[str]) -> dict[str, dict[int, str]]:
    """Return dimensions ("INPUT:DIM") as the argument of Python, which names the batch, too."""
    sizes: dict[str, dict[int, str]] = {}
    for text in dimensions:
        name, _, axis = text.rpartition(":")
        sizes.setdefault(name, {0: "batch"})[int(axis)] = f"{name}_{axis}".replace(".", "_")
    return sizes
