"""Checks of labels: one per sample, numbers of classes and no names."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qtool.core.argument_names import argument
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


# Recognises labels that number the classes in another order than the model's outputs, and data
# that the model does not know.


_GAIN = 0.3  # of top-1, by another order: a bad model gains less by any
_MOST = 10**7  # cells of the table of labels and answers
_FEW = 8  # samples below which nothing is said
_SHOWN = 3  # classes in the sentence
_ENOUGH = 50  # samples below which a guess may be right as often


def other_order(answers: Array, labels: Array, n_classes: int) -> str | None:
    """Return a sentence if the answers follow the labels one to one, under other numbers.

    Args:
        answers: [samples] best class of the float model.
        labels: [samples] class numbers.
        n_classes: number of the model's classes.
    """
    present, rows = np.unique(labels.astype(np.int64), return_inverse=True)
    if len(labels) < _FEW or len(present) * n_classes > _MOST:
        return None
    counts = np.zeros((len(present), n_classes), np.int64)
    np.add.at(counts, (rows, answers.astype(np.int64)), 1)
    mostly, every = counts.argmax(1), np.arange(len(present))
    moved = [(a, b) for a, b in zip(present, mostly, strict=True) if a != b]
    right = counts[every, present].sum() / len(labels)
    best = counts[every, mostly].sum() / len(labels)
    if not moved or len({*mostly}) < len(present) or best - right < _GAIN:
        return None
    named = ", ".join(f"label {a} is output {b}" for a, b in moved[:_SHOWN])
    more = ", ..." if len(moved) > _SHOWN else ""
    return (
        f"the float model has {right:.0%} with these labels, and {best:.0%} in another order of "
        f"the classes ({named}{more}): number the labels as the outputs, names of classes with "
        f"{argument('--classes')}"
    )


def no_better_than_a_guess(answers: Array, labels: Array) -> str | None:
    """Return a sentence if the answers are right no more often than the most frequent label.

    Args:
        answers: [samples] best class of the float model.
        labels: [samples] class numbers.
    """
    samples, (_, counts) = len(labels), np.unique(labels, return_counts=True)
    right = int((answers == labels).sum())
    if samples < _ENOUGH or len(counts) < 2 or right > counts.max():
        return None
    classes, answered = np.unique(answers, return_counts=True)
    usual = int(answered.argmax())
    return (
        f"the float model is right on {right} of {samples} samples, no more often than the most "
        f"frequent label ({counts.max()}), and answers class {classes[usual]} on "
        f"{answered[usual]}: check the preprocessing of the data, the labels and the weights"
    )
