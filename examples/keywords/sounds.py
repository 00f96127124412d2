"""Synthetic words: one second of sound as 49 frames of 10 band energies, as a keyword spotter has.

Each class is a way in which a tone and its overtones move; loudness, pitch, start and noise vary,
so that the example needs no recordings. `python -m examples.keywords.sounds FILE` writes sounds to
evaluate on, with their classes.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import torch

CLASSES = ("rising", "falling", "steady", "twice", "hum", "silence")
FRAMES, BANDS = 49, 10
_RATE, _WINDOW, _HOP = 8000, 256, 160


def sounds(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features [count, 1, 49, 10] and class numbers [count]."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(len(CLASSES), size=count)
    features = [_features(_sound(CLASSES[label], generator)) for label in labels]
    return torch.from_numpy(np.stack(features)[:, None]), torch.from_numpy(labels)


def calibration() -> list[tuple[torch.Tensor]]:
    """Batches to calibrate with."""
    features, _ = sounds(128, seed=2)
    return [(x,) for x in features.split(32)]


def write_evaluation(path: str) -> None:
    """Write features `x` and classes `labels` that training and calibration do not contain."""
    features, labels = sounds(400, seed=3)
    np.savez(path, x=features.numpy(), labels=labels.numpy())


def _sound(kind: str, generator: np.random.Generator) -> np.ndarray:
    """Return one second of samples."""
    time = np.arange(_RATE) / _RATE
    noise = generator.normal(0, generator.uniform(0.1, 2.0), _RATE)
    if kind == "silence":
        return noise
    start, length = generator.uniform(0, 0.3), generator.uniform(0.4, 0.6)
    place = np.clip((time - start) / length, 0, 1)
    pitch = generator.uniform(250, 450)
    slope = {"rising": 2.5, "falling": 0.35}.get(kind, 1.0)
    frequency = pitch * (0.4 if kind == "hum" else 1.0) * slope**place
    loud = np.where((time > start) & (time < start + length), generator.uniform(0.4, 1.0), 0.0)
    if kind == "twice":
        loud = loud * (np.abs(place - 0.5) > 0.12)
    phase = 2 * np.pi * np.cumsum(frequency) / _RATE
    voice = sum(np.sin(n * phase) / n for n in (1, 2, 3))
    return loud * voice + noise


def _features(sound: np.ndarray) -> np.ndarray:
    """Return the logarithm of band energies, frame by frame."""
    frames = np.stack([sound[i * _HOP : i * _HOP + _WINDOW] for i in range(FRAMES)])
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW))) ** 2
    edges = np.geomspace(2, power.shape[1], BANDS + 1).astype(int)
    bands = np.stack([power[:, a : max(b, a + 1)].mean(1) for a, b in pairwise(edges)], 1)
    return np.log(bands + 1e-3).astype(np.float32)


if __name__ == "__main__":
    write_evaluation(sys.argv[1])
