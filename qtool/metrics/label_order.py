"""Recognises labels that number the classes in another order than the model's outputs, and data
that the model does not know."""

from __future__ import annotations

import numpy as np

from qtool.core.argument_names import argument
from qtool.core.types import Array

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
