"""What an output is: scores of classes, vectors, or numbers.

Whether numbers are scores is not in their shape. Evidence is: labels of the user, a softmax in
front of the output, an argmax behind it, names of the output, of its layer, or of classes in the
file. Without evidence an output is numbers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.core.types import Array

# Scores of detectors whose outputs are boxes and scores, before boxes are selected.
#
# Detectors of the YOLO family give one tensor for all positions: [samples, 4 + classes, positions]
# (versions 8 and later) or [samples, positions, 5 + classes], with the probability of an object
# behind the box (versions 5 and 7, YOLOX).

LIMIT = 0.25
"""Score from which these networks' packages keep a box."""

_BOX = 4
_MOST = 0.3  # share of positions that are kept, at most: a detector finds few objects


class Detections(NamedTuple):
    """Scores of the positions of each sample.

    Attributes:
        best: score of the best class, [samples, positions].
        label: the best class, [samples, positions].
    """

    best: Array
    label: Array


def has_detections(output: Array) -> bool:
    """Return whether an output of a float model has boxes and scores, by its shape and values."""
    if output.ndim != 3 or min(output.shape[1:]) <= _BOX:
        return False
    channels = _channels(output)
    if channels.shape[1] * 2 > channels.shape[2]:
        return False
    boxes, scores = channels[:, :_BOX], channels[:, _BOX:]
    if boxes.max() <= 1 or scores.min() < 0 or scores.max() > 1:
        return False
    kept = (detections(output, output).best > LIMIT).mean()
    return bool(0 < kept < _MOST)


def detections(output: Array, real: Array) -> Detections:
    """Return the scores in an output.

    Args:
        output: [samples, channels, positions] or [samples, positions, channels].
        real: that of the float model, whose values say whether there is a probability of an object.
    """
    scores = _channels(output)[:, _BOX:]
    if _has_objects(_channels(real)[:, _BOX:]):
        scores = scores[:, :1] * scores[:, 1:]
    return Detections(scores.max(1), scores.argmax(1))


def _channels(output: Array) -> Array:
    """Return an output as [samples, channels, positions]."""
    return output if output.shape[1] < output.shape[2] else output.swapaxes(1, 2)


def _has_objects(scores: Array) -> bool:
    """Return whether the first score is the probability of an object: a class goes with it. The
    first of the classes excludes the others."""
    objects = scores[:, 0] > LIMIT
    if scores.shape[1] < 2 or not objects.any():
        return False
    return bool((scores[:, 1:].max(1)[objects] > LIMIT).mean() > 0.5)


CLASS, TOKEN, PIXEL = "class", "token", "pixel"
"""Best of the scores of a sample, of a position of a sequence, of a pixel."""
TEXT = "text"
"""What a recogniser reads in a sample, see `texts`."""
THRESHOLD, COSINE, NUMBERS = "threshold", "cosine", "numbers"
"""Values above a threshold (labels, masks); angle of vectors (embeddings); the spread of numbers
that is kept."""
DECISION = "decision"
"""One probability of a sample, above 0.5 or below."""
DETECTION = "detection"
"""Positions and classes with scores above a limit, before boxes are selected."""

EQUAL = "equal"
"""Whole numbers, as ids, the best classes or masks: they are equal or not."""

KINDS = (CLASS, TOKEN, PIXEL, THRESHOLD, DETECTION, COSINE, NUMBERS)
"""What a user may call an output. Texts are found among tokens."""

_OF_RANK = {2: CLASS, 3: TOKEN, 4: PIXEL}
_SCORES = re.compile(r"logit|logprob|classif|class|lm_head|softmax|(?<![a-z])(cls|seg)(?![a-z])")
_LINEAR_SCORES = re.compile(r"(?<![a-z])scores?(?![a-z])")
"""Word for scores of classes where a linear layer computes them; detectors score boxes by it."""
_VECTORS = re.compile(r"embed|pool|hidden|feature")
_VALUES = re.compile(
    r"box|coord|landmark|keypoint|offset|align|attn|attention|weight|depth|dispar|durat|state"
)
_CLASS_COUNTS = frozenset({1000, 1001, 21841, 21843})
"""Of ImageNet, with and without a class for the background, and of all of it."""
_MIXES = frozenset({"matmul", "bmm", "batchmatmul", "mul", "einsum"})
"""Operators that read weights of a mean, which sum to 1 as probabilities do."""
_LINEAR = frozenset({"add", "addmm", "biasadd", "fullyconnected", "gemm", "linear", "matmul"})
_SIGMOIDS = frozenset({"sigmoid", "logistic", "hardsigmoid"})
_UNIT = 1e-3  # tolerance of a sum or a norm of 1
_NEAR, _DECIDED = 0.1, 2 / 3  # share of probabilities so near to 0 or 1


class OutputKind(NamedTuple):
    """What an output is.

    Attributes:
        kind: one of `KINDS`.
        axis: the axis of the classes, of scores.
        threshold: limit of THRESHOLD and DECISION: 0.5, or 0 for logits.
    """

    kind: str
    axis: int = -1
    threshold: float = 0.0


def output_kind(name: str, a: Array, evidence: Evidence) -> OutputKind | None:
    """Return what an output is; None where its rows depend on values.

    Args:
        name: its name.
        a: its finite values in the float model, [samples, ...], two dimensions or more.
        evidence: what is known of it besides.
    """
    if evidence.rows == BY_VALUES:
        return None
    if evidence.kind:
        return _named(evidence.kind, a)
    name = name.lower()
    if (axis := _class_axis(name, a, evidence)) is not None:
        return OutputKind(_OF_RANK[a.ndim], axis)
    if _is_vector(name, a) and not evidence.is_state:
        return OutputKind(COSINE)
    if has_detections(a):
        return OutputKind(DETECTION)
    if not _VALUES.search(name) and (_are_decided(a) or _are_rare(a, evidence)):
        return OutputKind(THRESHOLD, threshold=0.5)
    if a.ndim == 4 and a.shape[1] == 1 and _says_scores(name, evidence) and (a > 0).any():
        return OutputKind(THRESHOLD)
    if _is_decision(name, a, evidence):
        return OutputKind(DECISION, threshold=0.5)
    return OutputKind(NUMBERS)


def _named(kind: str, a: Array) -> OutputKind:
    """Return what the user calls an output."""
    if kind == THRESHOLD:
        return OutputKind(kind, threshold=0.5 if in_unit(a) else 0.0)
    last = a.ndim != 4 or sums_to_one(a, 3)
    return OutputKind(kind, a.ndim - 1 if last else 1)


def _class_axis(name: str, a: Array, evidence: Evidence) -> int | None:
    """Return the axis of the classes in scores; None of other outputs."""
    if a.ndim not in _OF_RANK or evidence.is_state:
        return None
    for axis in dict.fromkeys((a.ndim - 1, 1)):
        if a.shape[axis] > 1 and (sums_to_one(a, axis) or sums_to_one(_exp(a), axis)):
            mixes = _VALUES.search(name) or evidence.uses & _MIXES
            return axis if not mixes or "argmax" in evidence.uses else None
    axis = 1 if a.ndim == 4 else a.ndim - 1
    width = a.shape[axis]
    if width < 2 or _VALUES.search(name) or _is_vector(name, a):
        return None
    counted = width == evidence.classes or 0 < evidence.labels <= width
    counted |= evidence.reads_images and width in _CLASS_COUNTS
    scored = _says_scores(name, evidence) or "argmax" in evidence.uses
    if a.ndim == 2 and evidence.ending in _LINEAR and not evidence.rows:
        scored |= bool(_LINEAR_SCORES.search(f"{name} {evidence.layer.lower()}"))
    return axis if scored or (counted and a.ndim == 2) else None


def _says_scores(name: str, evidence: Evidence) -> bool:
    """Return whether the name of an output or of its layer is that of scores."""
    return bool(_SCORES.search(name) or _SCORES.search(evidence.layer.lower()))


def _exp(a: Array) -> Array:
    """Return what log-probabilities are logarithms of; zeros for other values."""
    return np.exp(a) if a.max() <= _UNIT else np.zeros_like(a)


def sums_to_one(a: Array, axis: int) -> bool:
    """Return whether values are probabilities along an axis; rows of zeros are padding."""
    sums, kept = a.sum(axis), a.any(axis)
    return bool(a.min() >= 0 and kept.any() and (np.abs(sums[kept] - 1) < _UNIT).all())


def in_unit(a: Array) -> bool:
    """Return whether all values are 0 to 1."""
    return bool(a.min() >= 0 and a.max() <= 1)


def _is_vector(name: str, a: Array) -> bool:
    """Return whether an output is vectors, by its name or by norms of 1."""
    if a.ndim not in (2, 3) and max(a.shape[1:]) != a[0].size:
        return False
    if _VECTORS.search(name):
        return True
    norms = np.linalg.norm(a.reshape(len(a), -1), axis=1)
    return a.ndim != 3 and a[0].size > 1 and bool((np.abs(norms - 1) < _UNIT).all())


def _are_decided(a: Array) -> bool:
    """Return whether values are probabilities of labels. Those of a trained network are near 0 or
    1, on both sides; coordinates, depths and gates are not, whether a sigmoid made them or not."""
    if not in_unit(a) or (a.ndim == 4 and a.shape[1] == 3):
        return False
    above = a[a > 0.5]
    near = np.abs(a - 0.5) > 0.5 - _NEAR
    sure = above.size > 0 and float((above > 1 - _NEAR).mean()) >= 0.5
    return bool(sure and above.size < a.size and float(near.mean()) >= _DECIDED)


def _is_decision(name: str, a: Array, evidence: Evidence) -> bool:
    """Return whether values are one probability of each sample, on both sides of 0.5."""
    one = a.shape[1:] == (1,) and evidence.ending in _SIGMOIDS and not _VALUES.search(name)
    return bool(one and in_unit(a) and a.min() < 0.5 < a.max())


def _are_rare(a: Array, evidence: Evidence) -> bool:
    """Return whether values are probabilities of what no sample shows."""
    near = a.ndim == 2 and evidence.ending in _SIGMOIDS and a.max() < 0.5
    return near and float((a < _NEAR).mean()) >= _DECIDED
