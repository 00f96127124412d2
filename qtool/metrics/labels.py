"""Checks of labels: one per sample, numbers of classes and no names."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qtool.core.errors import DataError
from qtool.core.remedies import DataEdit
from qtool.core.types import Array


def check_labels(labels: ArrayLike, samples: int | None) -> None:
    """Raise DataError unless there is one label per sample, or numbers to predict; None: an unknown
    number of samples."""
    if isinstance(labels, str):
        raise DataError(
            f"the labels are the text '{labels}'", DataEdit("pass the values, as frame['price']")
        )
    try:
        array = np.asarray(labels)
    except ValueError as error:  # lists of different lengths, or batches
        raise DataError(
            f"the labels are a {type(labels).__name__} that is no array",
            DataEdit("pass one class number per sample"),
        ) from error
    if array.dtype.kind == "V":
        raise DataError("the labels are records", DataEdit("pass one of their fields"))
    several = array.ndim > 1 and array.size > len(array)
    shapeless = not array.ndim or (array.ndim > 1 and not array.size)
    if shapeless or (several and np.isin(array, (0, 1)).all()):
        raise DataError(
            f"the labels have shape {list(array.shape)}",
            DataEdit("pass one class number per sample"),
        )
    if samples is not None and len(array) != samples:
        raise DataError(
            f"{len(array)} labels for {samples} samples", DataEdit("pass one per sample")
        )


def classes_in(labels: object) -> int:
    """Return how many classes labels show: whole numbers, one per sample; 0 of other labels."""
    try:
        numbers = np.asarray(labels)
    except ValueError:  # of different lengths
        return 0
    whole = numbers.dtype.kind in "iu" and numbers.ndim < 2 and numbers.size
    return 1 + int(numbers.max()) if whole else 0


def check_no_names(labels: ArrayLike) -> None:
    """Raise DataError if labels are names of classes."""
    names = np.asarray(labels).reshape(-1)
    if names.dtype.kind not in "UO":
        return
    if (name := next((n for n in names.tolist() if isinstance(n, str)), None)) is not None:
        raise DataError(
            f"the labels are names, such as {name!r:.40}",
            DataEdit("pass class numbers, whole and from 0"),
            DataEdit(
                "number them in alphabetical order, if the model's classes are, with "
                "numpy.unique(labels, return_inverse=True)[1]"
            ),
        )


def check_classes(labels: Array, n_classes: int) -> None:
    """Raise DataError unless the labels are numbers of classes."""
    if labels.dtype.kind not in "iub" and not (
        labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.rint(labels))).all()
    ):
        raise DataError(
            f"the labels are {labels.dtype}", DataEdit("pass class numbers, whole and from 0")
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= n_classes:
        one = low == 1 and high == n_classes
        hint = "labels start at 1: subtract 1" if one else f"pass numbers of 0 to {n_classes - 1}"
        raise DataError(
            f"the labels are {low} to {high}, the model has {n_classes} classes", DataEdit(hint)
        )
