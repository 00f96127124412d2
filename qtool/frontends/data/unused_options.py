"""Refuses options of reading that do nothing for the data at hand, or have no such value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtool.core.argument_names import argument
from qtool.core.data_options import DataOptions
from qtool.core.errors import DataError
from qtool.core.limits import Range
from qtool.core.remedies import CallEdit, Omission

IMAGES, SOUNDS, TEXTS, WINDOWS = "image", "sound", "text", "windows"
COLUMNS, NAMES = "columns", "names"

USES: Mapping[str, tuple[str, Collection[str]]] = {
    "transform": ("images and sounds", {IMAGES, SOUNDS}),
    "processor": ("texts, images and sounds", {IMAGES, SOUNDS, TEXTS, WINDOWS}),
    "max-length": ("texts", {TEXTS, WINDOWS}),
    "pad-to-max-length": ("texts, a sample each", {TEXTS}),
    "max-unreadable": ("images and sounds", {IMAGES, SOUNDS}),
    "stride": ("one long text in a .txt file", {WINDOWS}),
    "column": ("tables and saved datasets", {COLUMNS}),
    "classes": ("labels that are names", {NAMES}),
}
"""Name of an option -> what it is for, in words and as kinds of data."""


def check_values(batch_size: object, labels: object) -> None:
    """Check the number of samples of a batch, and that `labels` is a name.

    Raises:
        OptionError: the number is out of its range. DataError: the labels are no name.
    """
    Range(low=1, whole=True).check("batch_size", batch_size)
    if not isinstance(labels, str | None):
        raise DataError(
            f"labels is a {type(labels).__name__}",
            CallEdit(
                "give the name of a column or array (an array of labels is an argument of "
                "what evaluates)"
            ),
        )


def parse_columns(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return names out of a list, or of a text where commas separate them."""
    names: Sequence[Any] = columns.split(",") if isinstance(columns, str) else columns or ()
    stripped = tuple(name.strip() if isinstance(name, str) else "" for name in names)
    if not all(stripped):
        raise DataError(
            f"{argument('--column')} is {columns!r:.40}", CallEdit("give names of columns")
        )
    return stripped


class UnusedOptionError(DataError):
    """An option does nothing for this data.

    Attributes:
        option: its name, without dashes.
    """

    def __init__(self, source: str | Path, option: str) -> None:
        what, flag = USES[option][0], f"--{option}"
        super().__init__(f"{argument(flag)} is for {what}, not for {source}", Omission(flag))
        self.option = option


def check_used(source: str | Path, kinds: Collection[str], options: DataOptions) -> None:
    """Check that data uses the options that a user chose.

    Args:
        source: the data, for the message.
        kinds: all that fit the data; none of `USES` where it is model inputs as they are.
        options: what the user chose.

    Raises:
        UnusedOptionError: an option does nothing.
    """
    chosen = [name for name in options.chosen().values() if name in USES]
    unused = (name for name in chosen if not set(kinds) & set(USES[name][1]))
    if (option := next(unused, None)) is not None:
        raise UnusedOptionError(source, option)
    if "transform" in chosen and "processor" in chosen:
        raise DataError(
            f"{argument('--transform')} prepares what {source} has, and "
            f"{argument('--processor')} would do nothing",
            Omission("--processor"),
            Omission("--transform"),
        )
