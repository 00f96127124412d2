"""What the detector is worth: mean average precision as COCO defines it, by pycocotools.

    qtool report ... --eval examples.detector.metric:mean_average_precision

It needs the package pycocotools. The selection of boxes is not part of the network and stays in
float here.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import numpy as np
import torch

from examples.detector.scenes import BATCH, Scenes, held_out

__all__ = ["mean_average_precision", "selected"]

LEAST_SCORE, OVERLAP = 0.05, 0.5


def mean_average_precision(model: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
    """On scenes that training and calibration have not seen; over overlaps of 0.5 to 0.95, and
    at 0.5."""
    scenes = held_out()
    outputs = torch.cat([model(images) for images in scenes.images.split(BATCH)])
    found = [
        [image, *_sides(box), score, label]
        for image, output in enumerate(outputs)
        for box, score, label in selected(output)
    ]
    return _judged(scenes, np.array(found, np.float64).reshape(-1, 7))


def selected(output: torch.Tensor) -> list[tuple[list[float], float, int]]:
    """Of one image, [14, places]: boxes with score and class, the best first; of those of a class
    that overlap the best alone."""
    scores, labels = output[4:].max(0)
    kept: list[tuple[list[float], float, int]] = []
    for at in scores.argsort(descending=True).tolist():
        box, score, label = output[:4, at].tolist(), float(scores[at]), int(labels[at])
        if score < LEAST_SCORE:
            break
        if all(label != other or _overlap(box, b) <= OVERLAP for b, _, other in kept):
            kept.append((box, score, label))
    return kept


def _overlap(a: list[float], b: list[float]) -> float:
    """Intersection over union."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    both = sum((c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)) - shared
    return shared / both if both > 0 else 0.0


def _sides(box: list[float] | np.ndarray) -> list[float]:
    """As COCO has boxes: left and upper end, width, height."""
    left, top, right, bottom = map(float, box)
    return [left, top, right - left, bottom - top]


def _judged(scenes: Scenes, found: np.ndarray) -> dict[str, float]:
    """found: rows of image, box as COCO has it, score, class."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    true = [
        {"image_id": image, "category_id": int(label), "bbox": _sides(box), "iscrowd": 0}
        for image, (boxes, labels) in enumerate(zip(scenes.boxes, scenes.labels, strict=True))
        for box, label in zip(boxes, labels, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        truth = COCO()
        truth.dataset = {
            "images": [{"id": image} for image in range(len(scenes.images))],
            "categories": [{"id": label} for label in range(10)],
            "annotations": [
                {**t, "id": i + 1, "area": t["bbox"][2] * t["bbox"][3]} for i, t in enumerate(true)
            ],
        }
        truth.createIndex()
        judge = COCOeval(truth, truth.loadRes(found), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return {"mAP": float(judge.stats[0]), "mAP at 0.5": float(judge.stats[1])}
