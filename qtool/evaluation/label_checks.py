"""Labels and their data before the work: checks, and columns of a DataFrame by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from qtool.backends.formats import open_file
from qtool.core.array_batches import samples_in, whole_texts
from qtool.core.errors import DataError
from qtool.core.frame_columns import in_column_order, input_columns, split_labels
from qtool.core.log import log_note
from qtool.core.remedies import DataEdit
from qtool.metrics.labels import check_labels, check_no_names

if TYPE_CHECKING:
    from qtool.evaluation.options import ReportOptions


def check_labels_of(labels: ArrayLike | None, data: Iterable[Any]) -> None:
    """Check that labels are numbers, one per sample where data has a known length, and in its
    order where both have an index of pandas.

    Args:
        labels: [samples] class numbers; None is right.
        data: batches.

    Raises:
        DataError: they are not.
    """
    if labels is None:
        return
    _check_order(labels, data)
    samples = whole_texts(data)
    count = getattr(samples, "sample_count", None)
    if isinstance(samples, list | tuple):
        count = sum(samples_in(item) for item in samples)
    check_labels(labels, count)
    check_no_names(labels)


def in_calibrated_order(file: str | Path, data: Any) -> Any:
    """Return data with the columns that a file was calibrated on; see `in_column_order`."""
    conversion = open_file(file).conversion() if input_columns(data) else None
    return data if conversion is None else in_column_order(data, conversion.info.columns)


def with_labels(data: Any, options: ReportOptions) -> tuple[Any, ReportOptions]:
    """Return data and options; labels that are a column of the data are its values."""
    data, labels = split_labels(data, options.labels)
    return data, replace(options, labels=labels)


def note_labels(data: Any, inputs: int) -> None:
    """Note that batches of a list or a loader have more than the inputs, which may be labels.

    Args:
        data: batches.
        inputs: number of inputs of the model.
    """
    items = data if isinstance(data, list | tuple) else getattr(data, "dataset", ())
    try:
        item = items[0]
    except Exception:  # noqa: BLE001  # the user's code; its errors show when it is read
        return
    if isinstance(item, list | tuple) and len(item) > inputs:
        more = f"{inputs} of {len(item)} entries" if inputs > 1 else "the first entry alone"
        log_note(f"batches give {more} to the model; pass labels to measure accuracy with them")


def _check_order(labels: Any, data: Any) -> None:
    """Check that labels and a frame have the same rows in one order; rows of other names are taken
    in the order that they have."""
    own: Any = getattr(data, "index", None)
    other: Any = getattr(labels, "index", None)
    if not hasattr(own, "equals") or not hasattr(other, "equals") or own.equals(other):
        return
    if len(own) == len(other) and set(own) == set(other):
        at = next(i for i, (a, b) in enumerate(zip(own, other, strict=True)) if a != b)
        raise DataError(
            f"the labels have the rows of the data in another order (row {at + 1} is {own[at]} "
            f"in the data, {other[at]} in the labels)",
            DataEdit("give labels.loc[data.index]"),
            DataEdit("give labels.to_numpy() if they are in the order of the data"),
        )
