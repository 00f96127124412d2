"""Labels of a command: of a file, an array or a column that --labels names, or with the data."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from qtool.cli.reading import NO_DATA, Reading


def is_column(labels: str, data: Path) -> bool:
    """Return whether --labels names a column of data; tables are read where torch is installed."""
    from qtool.core.torch_package import has_torch

    if not has_torch():
        return False
    from qtool.frontends.data.tables import has_columns

    return has_columns(labels, data)


def labels_within(labels: str | None, data: str | None) -> str | None:
    """Return --labels where --data holds them, too, so that they are no input; else None."""
    from qtool.core.errors import DataError
    from qtool.core.numpy_files import array_names

    if labels is None or data is None or data == NO_DATA:
        return None
    if labels in array_names(Path(data)):
        return labels
    with suppress(DataError):  # a table without such a column
        return labels if is_column(labels, Path(data)) else None
    return None


def are_names(labels: str | None, data: str) -> bool:
    """Return whether --labels names an array of class names."""
    from qtool.core.errors import DataError
    from qtool.core.numpy_files import find_labels

    with suppress(DataError):
        if labels is not None and not is_column(labels, Path(data)):
            return find_labels(labels, Path(data)).dtype.kind == "U"
    return False


def load_labels(reading: Reading, data: str, batches: Iterable[Any]) -> Any:
    """Load the array that --labels names; without the option the labels of the data, or None.

    Names of classes become numbers as those of the data do.

    Raises:
        DataError: there is no such array.
    """
    from qtool.core.numpy_files import find_labels
    from qtool.core.torch_package import has_torch

    names, key = reading.options.classes, reading.sources.labels
    if key is None or is_column(key, Path(data)):
        own = getattr(batches, "labels", None)
        if own is None:
            _note_no_labels(data, batches, reading.model)
        return own
    labels = find_labels(key, Path(data))
    if labels.dtype.kind == "U" and has_torch():
        from qtool.frontends.data.class_order import numbers_of_names

        labels = numbers_of_names(labels, Path(data), names, reading.model)
    if labels is not None and has_torch():
        from qtool.core.data.subset import FirstSamples

        if isinstance(batches, FirstSamples):
            return labels[: batches.samples]
    positions = getattr(batches, "positions", None)
    if labels is None or positions is None or len(labels) <= max(positions):
        return labels
    return labels[positions]


def note_labels(data: Path, model: Any = None) -> None:
    """Note that a file of arrays has labels, with which nothing is measured without --labels."""
    from qtool.core.leaf_names import LABELS
    from qtool.core.log import log_note
    from qtool.core.numpy_files import array_names
    from qtool.core.torch_package import has_torch

    names = array_names(data) & LABELS
    if names and has_torch():
        from qtool.frontends.data.load_data import input_names

        names -= input_names(model)
    if usual := sorted(names):
        log_note(f"{data} has labels; --labels {usual[0]} measures accuracy with them")


def _note_no_labels(data: str, batches: Iterable[Any], model: Any) -> None:
    """Say why there is no accuracy, where data of this kind can have labels."""
    from qtool.core.log import log_note

    rows = getattr(batches, "rows", ())
    if rows and rows[0].kinds[:1] != ("text",):
        log_note(
            f"{data} has no labels, so there is no top-1: put its files into a folder per class, "
            "or name an array of class numbers, in the order of their names, with --labels"
        )
    else:
        note_labels(Path(data), model)
