"""Images with one to four handwritten digits of several sizes, and where these are.

The digits are those of the sample network: the 200 that it is calibrated on, and the 450 that
neither training nor calibration has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

__all__ = ["Scenes", "calibration", "drawn", "evaluation", "held_out"]

ROOT = Path(__file__).parents[2]
SIZE, SMALLEST, LARGEST, MOST = 64, 14, 28, 4
INK = 0.25  # from where on a pixel counts as part of a digit
CALIBRATION, EVALUATION, BATCH = 128, 256, 32


@dataclass(frozen=True)
class Scenes:
    """images: [N, 1, 64, 64] in 0..1. boxes: for each, [digits, 4], left, upper, right and lower
    end. labels: for each, [digits]."""

    images: torch.Tensor
    boxes: list[np.ndarray]
    labels: list[np.ndarray]


def drawn(digits: np.ndarray, labels: np.ndarray, count: int, seed: int) -> Scenes:
    """Scenes of digits [N, 16, 16]; the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    images = rng.uniform(0, 0.2, (count, SIZE, SIZE)).astype(np.float32)
    boxes, kinds = [], []
    for image in images:
        found: list[tuple[int, int, int, int]] = []
        names = []
        for pick in rng.integers(len(digits), size=rng.integers(1, MOST + 1)):
            size = int(rng.integers(SMALLEST, LARGEST + 1))
            tile = _resized(digits[pick], size)
            rows, columns = (np.flatnonzero((tile > INK).any(axis)) for axis in (1, 0))
            y, x = rng.integers(0, SIZE - size + 1, 2)
            box = (x + columns[0], y + rows[0], x + columns[-1] + 1, y + rows[-1] + 1)
            if all(_apart(box, other) for other in found):
                part = image[y : y + size, x : x + size]
                np.maximum(part, tile, out=part)
                found.append(box)
                names.append(int(labels[pick]))
        boxes.append(np.array(found, np.float32))
        kinds.append(np.array(names, np.int64))
    return Scenes(torch.from_numpy(images)[:, None], boxes, kinds)


def _resized(digit: np.ndarray, size: int) -> np.ndarray:
    given = torch.from_numpy(digit)[None, None]
    return F.interpolate(given, (size, size), mode="bilinear")[0, 0].numpy()


def _apart(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def calibration() -> list[torch.Tensor]:
    """Batches of images."""
    with np.load(ROOT / "calib_data" / "digits" / "images.npz") as file:
        digits = file["x"][:, 0]
    scenes = drawn(digits, np.zeros(len(digits), np.int64), CALIBRATION, seed=1)
    return list(scenes.images.split(BATCH))


def held_out() -> Scenes:
    with np.load(ROOT / "examples" / "digits" / "eval.npz") as file:
        return drawn(file["x"][:, 0], file["labels"], EVALUATION, seed=2)


def evaluation() -> list[torch.Tensor]:
    """Batches of the images of `held_out`."""
    return list(held_out().images.split(BATCH))
