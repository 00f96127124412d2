"""Scores of detectors whose outputs are boxes and scores, before boxes are selected.

Detectors of the YOLO family give one tensor for all positions: [samples, 4 + classes, positions]
(versions 8 and later) or [samples, positions, 5 + classes], with the probability of an object
behind the box (versions 5 and 7, YOLOX).
"""

from __future__ import annotations

from typing import NamedTuple

from qtool.core.types import Array

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
