"""Texts of recognisers that were trained with CTC (Graves et al. 2006).

Such a network gives each position of a line a character or a blank. Equal neighbours are one
character, and blanks are left out. One wrong position makes another text.
"""

from __future__ import annotations

import numpy as np

from qtool.core.types import Array

_POSITIONS = 8  # of a line, at least
_BLANKS = 0.2  # share of the positions, at least
_CHARACTERS = 10  # that occur, at least: digits. Labels of words are fewer
_RUN = 2.0  # positions of a character, at most in the mean


def blank_of(labels: Array, classes: int) -> int | None:
    """Return the class that is the blank of texts; None where labels are no texts.

    A blank is the first or the last class, and stands between characters, which are many and short.

    Args:
        labels: whole numbers [samples, positions], those of the float model.
        classes: number of classes.
    """
    if labels.ndim != 2 or labels.shape[1] < _POSITIONS:
        return None
    blank = max((0, classes - 1), key=lambda each: int((labels == each).sum()))
    others = labels != blank
    starts = others & _changes(labels)
    if not others.any() or others.mean() > 1 - _BLANKS:
        return None
    many = len(np.unique(labels[others])) >= _CHARACTERS
    return blank if many and others.sum() <= _RUN * starts.sum() else None


def same_texts(one: Array, other: Array, blank: int) -> Array:
    """Return which samples have the same text, bool [samples].

    Args:
        one, other: labels [samples, positions].
        blank: class that is left out.
    """
    return np.array([a == b for a, b in zip(texts(one, blank), texts(other, blank), strict=True)])


def changes_text(labels: Array, others: Array, blank: int) -> Array:
    """Return where another label makes another text, one position at a time.

    Args:
        labels: [samples, positions].
        others: the label in its place, of each position.
        blank: class that is left out.

    Returns:
        bool [samples, positions].
    """
    before, after = (np.pad(labels, ((0, 0), p), constant_values=blank) for p in ((1, 0), (0, 1)))
    before, after = before[:, :-1], after[:, 1:]

    def characters(each: Array) -> tuple[Array, Array]:
        """Return what this position and the next one add to a text, the first and the second."""
        own = np.where(each == before, blank, each)
        following = np.where(after == each, blank, after)
        none = own == blank
        return np.where(none, following, own), np.where(none, blank, following)

    pairs = zip(characters(labels), characters(others), strict=True)
    changes: Array = np.any([a != b for a, b in pairs], 0)
    return changes


def texts(labels: Array, blank: int) -> list[list[int]]:
    """Return the text of each sample: labels [samples, positions] without blanks and repeats."""
    kept = (labels != blank) & _changes(labels)
    return [row[keep].tolist() for row, keep in zip(labels, kept, strict=True)]


def _changes(labels: Array) -> Array:
    """Return where a label differs from that before it, bool [samples, positions]."""
    changes: Array = np.diff(labels, axis=1, prepend=labels[:, :1] - 1) != 0
    return changes
