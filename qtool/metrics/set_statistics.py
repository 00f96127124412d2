"""Statistics of outputs and labels of a set of samples: F1, rank correlation, recall, precision."""

from __future__ import annotations

import math

import numpy as np

from qtool.core.errors import DataError
from qtool.core.types import Array
from qtool.metrics.texts import texts

_ROWS = 1024  # queries that are compared with all samples at a time


def f1_terms(real: Array, other: Array, labels: Array) -> tuple[Array, Array]:
    """Return true positives, false positives and false negatives, [samples, classes, 3].

    Args:
        real, other: outputs of both files: scores [samples, ..., classes] (of images the classes
            are dimension 1), or one number per label.
        labels: class numbers without the dimension of the classes, negative ones are ignored; or 0
            and 1 for each number, which is positive above 0.5 if all outputs are probabilities,
            else above 0. All such labels are one class.

    Raises:
        DataError: other shapes.
    """
    if real.ndim == labels.ndim + 1 and real.shape[-1] == 1:
        real, other = real[..., 0], other[..., 0]
    if real.shape == labels.shape and np.isin(labels, (0, 1)).all():
        limit = 0.5 if real.min() >= 0 and real.max() <= 1 else 0.0
        truth = labels.reshape(len(labels), -1, 1) == 1
        positive = [(o > limit).reshape(truth.shape) for o in (real, other)]
        return _counts(positive[0], truth), _counts(positive[1], truth)
    axis = 1 if real.ndim == 4 else real.ndim - 1
    shape = real.shape[:axis] + real.shape[axis + 1 :]
    if shape != labels.shape or real.ndim < 2:
        raise DataError(
            f"F1 needs class numbers or 0 and 1 as labels; theirs is the shape "
            f"{list(labels.shape)}, that of the first output {list(real.shape)}"
        )
    classes = np.arange(1 if real.shape[axis] == 2 else 0, real.shape[axis])
    flat = labels.reshape(len(labels), -1, 1)
    truth, known = flat == classes, flat >= 0
    best = [o.argmax(axis).reshape(flat.shape) == classes for o in (real, other)]
    return _counts(best[0] & known, truth), _counts(best[1] & known, truth)


def _counts(positive: Array, truth: Array) -> Array:
    each = (positive & truth, positive & ~truth, ~positive & truth)
    return np.stack([e.sum(1) for e in each], -1)


def mean_f1(terms: Array) -> float:
    """Return the F1 of terms [samples, classes, 3], the mean over the classes that occur."""
    hits, false, missed = terms.sum(0).T
    occurs = hits + false + missed > 0
    if not occurs.any():
        return math.nan
    return float((2 * hits / np.maximum(2 * hits + false + missed, 1))[occurs].mean())


def recall_hits(vectors: Array, groups: Array, count: int) -> Array:
    """Return whether one of the nearest other samples by cosine is of the same group.

    Args:
        vectors: [samples, width].
        groups: [samples] group numbers.
        count: number of nearest samples.

    Returns:
        bool, for each sample that is not alone in its group.

    Raises:
        DataError: all samples are alone.
    """
    _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    queries = np.flatnonzero(sizes[index] > 1)
    if not len(queries):
        raise DataError("no two samples have the same label, so that there is nothing to recall")
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    nearest = min(count, len(units) - 1)
    hits = []
    for start in range(0, len(queries), _ROWS):
        some = queries[start : start + _ROWS]
        near = units[some] @ units.T
        near[np.arange(len(some)), some] = -np.inf
        best = np.argpartition(-near, nearest - 1, axis=1)[:, :nearest]
        hits.append((index[best] == index[some, None]).any(1))
    return np.concatenate(hits)


def average_precision(terms: Array) -> float:
    """Return the mean over classes of the average precision.

    Args:
        terms: [samples, 2, classes]: scores and 0 or 1; classes without a positive sample are left
            out.
    """
    order = np.argsort(-terms[:, 0], axis=0, kind="stable")
    truth = np.take_along_axis(terms[:, 1], order, 0) > 0
    precision = truth.cumsum(0) / np.arange(1, len(truth) + 1)[:, None]
    positives = truth.sum(0)
    if not positives.any():
        return math.nan
    each = (precision * truth).sum(0)[positives > 0] / positives[positives > 0]
    return float(each.mean())


def decode(output: Array, blank: int) -> list[list[int]]:
    """Return the words of each sample: numbers as they are, or the best path of CTC.

    Args:
        output: whole numbers [samples, words], or scores [samples, steps, words].
        blank: number of CTC's blank.

    Raises:
        DataError: another shape.
    """
    if output.ndim == 2 and output.dtype.kind in "iu":
        return [[int(w) for w in row if w >= 0 and w != blank] for row in output]
    if output.ndim != 3:
        raise DataError("WER needs [samples, steps, words] scores or [samples, words] numbers")
    best = np.where(output.any(-1), output.argmax(-1), blank)  # padded steps are zero
    return texts(best, blank)


def word_errors(words: list[list[int]], labels: Array) -> Array:
    """Return the edit distance of each sample and the number of its true words, [samples, 2]."""
    true = [row[row >= 0] for row in labels]
    return np.array([(_distance(a, b), len(b)) for a, b in zip(words, true, strict=True)])


def _distance(words: list[int], true: Array) -> int:
    row = np.arange(len(true) + 1)
    steps = np.arange(len(true) + 1)
    for word in words:
        best = np.minimum(row[1:] + 1, row[:-1] + (true != word))
        best = np.concatenate([row[:1] + 1, best])
        row = np.minimum.accumulate(best - steps) + steps  # insertions, from left to right
    return int(row[-1])
