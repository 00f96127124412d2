"""What a user of a network would notice: decisions from outputs, and how alike two lists are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

__all__ = [
    "Task",
    "boxes",
    "classes",
    "close",
    "cosine",
    "decisions",
    "lines",
    "mask",
    "pairs_in_order",
]

Outputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """A task metric.

    Attributes:
        words: what the score counts.
        decide: the outputs of one sample -> its decision.
        score: decisions of two models, or labels and decisions -> 0 to 1, 1 if all agree.
        truth: labels and decisions, where that is another score.
        mean: the score is the mean of those of single samples.
    """

    words: str
    decide: Callable[[Outputs], Any]
    score: Callable[[Sequence[Any], Sequence[Any]], float]
    truth: Callable[[Sequence[Any], Sequence[Any]], float] | None = None
    mean: bool = True

    def judge(self, labels: Sequence[Any], decisions: Sequence[Any]) -> float:
        """Return the score against the right answers."""
        return (self.truth or self.score)(labels, decisions)


def _equal(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Share of equal values, each sample with the same weight."""
    return float(np.mean([np.mean(np.equal(a, b)) for a, b in zip(left, right, strict=True)]))


def _same(left: Sequence[Any], right: Sequence[Any]) -> float:
    return float(np.mean([a == b for a, b in zip(left, right, strict=True)]))


def _f1(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    both = sum(int((a & b).sum()) for a, b in zip(left, right, strict=True))
    total = sum(int(a.sum()) + int(b.sum()) for a, b in zip(left, right, strict=True))
    return 2 * both / total if total else 1.0


def _cosines(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    values = []
    for a, b in zip(left, right, strict=True):
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        values.append(float((a * b).sum() / max(norms, 1e-300)))
    return float(np.mean(values))


def _near(distance: float, left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    pairs = zip(left, right, strict=True)
    return float(np.mean([np.mean(np.abs(a - b) <= distance) for a, b in pairs]))


def _output(outputs: Outputs, place: int) -> np.ndarray:
    value = np.asarray(list(outputs.values())[place])
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def classes(axis: int = -1, place: int = 0) -> Task:
    return Task("same class", lambda o: _output(o, place).argmax(axis), _equal)


def decisions(threshold: float, place: int = 0, name: str = "same decision") -> Task:
    return Task(f"{name} at {threshold:g}", lambda o: _output(o, place) > threshold, _equal)


def mask(threshold: float, place: int = 0) -> Task:
    return Task(
        f"F1 of values above {threshold:g}",
        lambda o: _output(o, place) > threshold,
        _f1,
        mean=False,
    )


def cosine(place: int = 0) -> Task:
    return Task("mean cosine", lambda o: _output(o, place), _cosines)


def close(distance: float, place: int = 0) -> Task:
    return Task(f"within {distance:g}", lambda o: _output(o, place), partial(_near, distance))


def pairs_in_order() -> Task:
    """Vectors of two texts each: the rank correlation of their cosines with what people say."""

    def ranked(labels: Sequence[float], vectors: Sequence[np.ndarray]) -> float:
        from scipy.stats import spearmanr

        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        return float(spearmanr(labels[::2], [_cosines([a], [b]) for a, b in pairs]).statistic)

    words = "Spearman of pairs; agreement: mean cosine"
    return Task(words, lambda o: _output(o, 0), _cosines, ranked, mean=False)


def lines(silent: Sequence[int], axis: int = 1, *, indices: bool = False) -> Task:
    """Equal text lines of a CTC network, without repeats.

    Args:
        silent: classes to leave out: the blank, the space.
        axis: of time in the first output.
        indices: the output holds the best classes themselves.
    """

    def decide(outputs: Outputs) -> tuple[int, ...]:
        value = _output(outputs, 0)
        best = value.ravel() if indices else np.moveaxis(value, axis, 0).argmax(-1).ravel()
        kept = best[np.append(True, best[1:] != best[:-1])]
        return tuple(int(c) for c in kept if c not in silent)

    return Task("same text", decide, _same)


def boxes(layout: str, size: int, threshold: float) -> Task:
    """F1 of boxes matched at an IoU above 0.5, after non-maximum suppression at 0.45.

    Args:
        layout: "yolov8" ([1, 4 + classes, boxes]) or "yolox" ([1, boxes, 5 + classes], in grids).
        size: of the image.
        threshold: of scores.
    """
    read = {"yolov8": _yolov8, "yolox": partial(_yolox, size)}[layout]

    def decide(outputs: Outputs) -> np.ndarray:
        corners, scores = read(_output(outputs, 0)[0])
        return _suppressed(corners[scores > threshold], scores[scores > threshold])

    return Task("F1 of boxes", decide, _matched, mean=False)


def _corners(centre: np.ndarray, sides: np.ndarray) -> np.ndarray:
    return np.concatenate([centre - sides / 2, centre + sides / 2], 1)


def _yolov8(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = value.T
    return _corners(rows[:, :2], rows[:, 2:4]), rows[:, 4:].max(1)


def _yolox(size: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    places, strides = [], []
    for stride in (8, 16, 32):
        n = size // stride
        down, across = np.mgrid[:n, :n]
        places.append(np.stack([across, down], -1).reshape(-1, 2))
        strides.append(np.full((n * n, 1), stride))
    stride = np.concatenate(strides)
    centre = (rows[:, :2] + np.concatenate(places)) * stride
    return _corners(centre, np.exp(rows[:, 2:4]) * stride), rows[:, 4] * rows[:, 5:].max(1)


def _iou(one: np.ndarray, many: np.ndarray) -> np.ndarray:
    low, high = np.maximum(one[:2], many[:, :2]), np.minimum(one[2:], many[:, 2:])
    both = np.clip(high - low, 0, None).prod(1)
    areas = (one[2:] - one[:2]).prod() + (many[:, 2:] - many[:, :2]).prod(1)
    return both / np.maximum(areas - both, 1e-9)


def _suppressed(corners: np.ndarray, scores: np.ndarray) -> np.ndarray:
    kept: list[np.ndarray] = []
    for box in corners[np.argsort(-scores)]:
        if not kept or _iou(box, np.stack(kept)).max() < 0.45:
            kept.append(box)
    return np.stack(kept) if kept else np.zeros((0, 4))


def _matched(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    both = total = 0
    for a, b in zip(left, right, strict=True):
        total += len(a) + len(b)
        free = np.ones(len(b), bool)
        for box in a:
            overlaps = _iou(box, b) * free if len(b) else np.zeros(1)
            if overlaps.max() > 0.5:
                free[overlaps.argmax()] = False
                both += 1
    return 2 * both / total if total else 1.0
