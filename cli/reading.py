"""The data of a command: how its options say that it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from qtool.cli.records import record
from qtool.cli.value_types import COUNT

from qtool.core.data_options import DataOptions
from qtool.core.path_arguments import GENAI_CONFIG

F = TypeVar("F", bound=Callable[..., Any])
NO_DATA = "none"
_CONFIGS = ("config.json", GENAI_CONFIG)
_READ = "samples column states transform folder max_length padded"
"""Fields of `DataOptions` that all commands with data have."""


@dataclass(frozen=True)
class Sources:
    """The data of a command: values of the options of these names; None without."""

    data: str | None = None
    eval_data: str | None = None
    labels: str | None = None
    shape: str | None = None

    @property
    def named(self) -> list[str]:
        """Files, folders and functions of samples."""
        return [each for each in (self.data, self.eval_data) if each not in (None, NO_DATA)]


@dataclass(frozen=True)
class Reading:
    """The data of a command, and how it is read.

    Attributes:
        options: as the user chose them.
        sources: where it is.
        batch_size: samples of a batch.
        files: model files of the command; data is read with processors next to them.
        name, model: MODEL and the model that the data is for; None before it is loaded.
    """

    options: DataOptions
    sources: Sources
    batch_size: int
    files: Sequence[Path] = ()
    name: str | None = None
    model: Any = None

    def of(self, name: str, model: Any) -> Reading:
        """Return the reading of data for a loaded model."""
        return replace(self, name=name, model=model)

    @property
    def folder(self) -> Path | None:
        """The folder with a tokenizer and the like: that of MODEL, or the first one that a model
        file of the command is in."""
        from qtool.frontends.huggingface.folder_layout import model_folder_of

        if self.name is not None and Path(self.name).is_dir():
            return Path(self.name)
        folders = map(model_folder_of, self.files)
        return next((f for f in folders if any((f / name).is_file() for name in _CONFIGS)), None)


def reads(more: str = "", files: str = "", sized: bool = True) -> Callable[[F], F]:
    """Decorate a command with the options of reading data, which it gets as `reading`.

    Args:
        more: fields of `DataOptions` that not all commands have.
        files: parameters that are model files.
        sized: whether the command has --batch-size.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def command(*args: Any, read: DataOptions, batch_size: int = 1, **values: Any) -> Any:
            paths = (values[name] for name in files.split())
            every = [p for each in paths for p in (each if isinstance(each, tuple) else (each,))]
            named = Sources(**{f.name: values.pop(f.name, None) for f in fields(Sources)})
            return function(*args, reading=Reading(read, named, batch_size, every), **values)

        size = click.option(
            "--batch-size",
            default=32,
            show_default=True,
            type=COUNT,
            help="Batch size for data files.",
        )
        return record("read", DataOptions, f"{_READ} {more}")(size(command) if sized else command)

    return decorate
