"""Yardsticks of outputs: kinds, values by hand, and what they warn of."""

from typing import Any

import numpy as np
import pytest

from qtool.metrics.output_agreement import (
    CLASS,
    COSINE,
    ORDER,
    PIXEL,
    THRESHOLD,
    TOKEN,
    output_agreement,
)
from qtool.verification.fidelity import compare_outputs

generator = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return generator.normal(size=shape).astype(np.float32)


def softmax(x: np.ndarray[Any, Any], axis: int = -1) -> np.ndarray[Any, Any]:
    e = np.exp(x)
    return e / e.sum(axis, keepdims=True)


def sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    scores: np.ndarray[Any, Any] = 1 / (1 + np.exp(-x))
    return scores


def coordinates(*shape: int) -> np.ndarray[Any, Any]:
    """Values anywhere in 0 to 1."""
    return generator.random(shape).astype(np.float32)


def areas(classes: int) -> np.ndarray[Any, Any]:
    """Scores [4, classes, 16, 16] of vertical stripes."""
    best = np.arange(16) * classes // 16
    scores = (best[None, :] == np.arange(classes)[:, None]).astype(np.float32)
    return np.broadcast_to(scores[None, :, None, :], (4, classes, 16, 16)) * 3 - 1


UNIT = normal(20, 8) / 1e3
UNIT = UNIT / np.linalg.norm(UNIT, axis=1, keepdims=True)
KINDS: dict[str, tuple[str, np.ndarray[Any, Any], str | None]] = {
    "logits of classes": ("output", normal(20, 10), CLASS),
    "probabilities": ("output", softmax(normal(20, 10)), CLASS),
    "log-probabilities": ("output", np.log(softmax(normal(20, 10))), CLASS),
    "characters": ("softmax_2.tmp_0", softmax(normal(4, 30, 50)), TOKEN),
    "tokens": ("logits", normal(2, 30, 50), TOKEN),
    "segmentation": ("output", areas(5), PIXEL),
    "its probabilities": ("output", softmax(areas(3), 1), PIXEL),
    "noise of four channels": ("output", normal(4, 4, 16, 16), None),
    "an image": ("output", generator.random((4, 3, 16, 16)).astype(np.float32), None),
    "labels": ("output", sigmoid(8 * normal(20, 7)), THRESHOLD),
    "a mask": ("output", sigmoid(20 * areas(2)[:, :1] - 20), THRESHOLD),
    "landmarks": ("output", coordinates(20, 10), None),
    "landmarks by a sigmoid": ("output", sigmoid(normal(20, 10)), None),
    "points": ("output", coordinates(20, 5, 2), None),
    "boxes by a sigmoid": ("output", sigmoid(normal(4, 300, 4)), None),
    "one coordinate": ("output", coordinates(20, 1), ORDER),
    "positive features": ("embedding", coordinates(20, 64), COSINE),
    "logits of a mask": ("output", areas(2)[:, :1], THRESHOLD),
    "a residual": ("output", normal(4, 1, 16, 16), None),
    "a probability": ("output", sigmoid(12 * normal(20, 1)), THRESHOLD),
    "unit vectors": ("output", UNIT, COSINE),
    "an embedding": ("embedding", normal(20, 64), COSINE),
    "a vector in place of an image": ("output", normal(20, 1, 1, 64), COSINE),
    "states": ("last_hidden_state", normal(2, 9, 64), COSINE),
    "a price": ("output", normal(20, 1), ORDER),
    "numbers": ("output", normal(20), ORDER),
    "boxes": ("output", 100 + normal(2, 300, 6), None),
    "always one class": ("output", normal(20, 10) * 0.01 + np.eye(10, dtype=np.float32)[3], COSINE),
    "zeros": ("output", np.zeros((20, 10), np.float32), None),
    "one number": ("output", np.ones((20, 1), np.float32), None),
    "whole numbers": ("output", np.arange(20), None),
    "NaN": ("output", np.full((20, 10), np.nan, np.float32), None),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds(case: str) -> None:
    name, real, kind = KINDS[case]
    same = output_agreement(name, real, real.copy())
    assert (None if same is None else same.kind) == kind
    if same is not None:
        assert same.value == pytest.approx(1)
        assert same.kl in (None, pytest.approx(0, abs=1e-6))
        broken = output_agreement(name, real, np.full_like(real, np.nan))
        assert broken.value < 0.6


def test_values_by_hand() -> None:
    real, noise = normal(200, 10), normal(200, 10)
    classes = output_agreement("logits", real, real + 0.3 * noise)
    assert classes.value == (real.argmax(1) == (real + 0.3 * noise).argmax(1)).mean()
    x, y = real[:, :1], real[:, :1] + 0.1 * noise[:, :1]
    order = output_agreement("price", x, y)
    ranks = [each[:, 0].argsort().argsort() for each in (x, y)]
    assert order.value == pytest.approx(np.corrcoef(*ranks)[0, 1])
    ties = output_agreement("stars", np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert ties.value == pytest.approx(4.5 / np.sqrt(4.5 * 5))  # ranks 1, 2.5, 2.5, 4
    p, q = softmax(normal(2, 9, 30)), softmax(normal(2, 9, 30))
    tokens = output_agreement("out", p, q)
    assert tokens.kl == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-4)
    logits = output_agreement("logits", np.log(p) + 7, np.log(q) - 2)
    assert logits.kl == pytest.approx(tokens.kl, rel=1e-4)
    a, b = np.array([[0.95, 0.6, 0.1, 0.02, 0.01, 0]]), np.array([[0.8, 0.4, 0.3, 0.1, 0, 0]])
    mask = output_agreement("mask", a, b)
    assert (mask.value, mask.threshold, mask.compared) == (pytest.approx(2 / 3), 0.5, 6)


def test_padding_does_not_count() -> None:
    real, other = normal(2, 6, 9), normal(2, 6, 9)
    real[:, 4:] = other[:, 4:] = 0
    agreement = output_agreement("logits", real, other)
    assert agreement.compared == 8


@pytest.mark.parametrize(
    ("noise", "warning"), [(0.02, None), (0.15, None), (4.0, "'out' is hardly of use (same token ")]
)
def test_warnings_follow_the_yardstick(noise: float, warning: str | None) -> None:
    """Clear texts, at 34, 16 and -12 dB."""
    best = generator.integers(0, 40, (4, 30))
    real = softmax(6 * np.eye(40, dtype=np.float32)[best])
    other = real + noise * real.max() * normal(*real.shape) / 6
    fidelity = compare_outputs(4, ["out"], [real], [other])
    assert (fidelity.worst < 20) == (noise > 0.1)
    assert (warning is None and fidelity.warning is None) or warning in str(fidelity.warning)
    assert "; same token " in fidelity.row()[1]


def test_scores_that_hardly_differ_are_of_no_use_above_20_db() -> None:
    real = softmax(0.05 * normal(100, 10))
    other = real + 0.006 * normal(100, 10)
    fidelity = compare_outputs(100, ["probabilities"], [real], [other])
    assert 20 < fidelity.worst < 30
    assert "'probabilities' is hardly of use (same class" in str(fidelity.warning)


def test_a_cache_is_judged_by_what_reads_it() -> None:
    real, noise = normal(1, 30, 50), normal(1, 30, 50)
    cache = generator.integers(-100, 100, (1, 2, 30, 8)).astype(np.int8)
    values = normal(1, 2, 30, 8)
    fidelity = compare_outputs(
        1,
        ["logits", "present.0.key", "present.0.value"],
        [real, cache, values],
        [real + 0.01 * noise, cache + 1, values + 0.5 * normal(1, 2, 30, 8)],
    )
    assert fidelity.warning is None
    assert "equal" not in fidelity.row()[1]


@pytest.mark.parametrize("samples", [8, 10, 40])
def test_one_swap_of_neighbours_is_no_difference(samples: int) -> None:
    """It costs much of a rank correlation of few samples, and little of one of many."""
    real = np.arange(samples, dtype=np.float32)
    once, twice = real.copy(), real.copy()
    once[[0, 1]] = once[[1, 0]]
    twice[[0, 1, 3, 4]] = twice[[1, 0, 4, 3]]
    near, far = (output_agreement("price", real, each) for each in (once, twice))
    assert near.is_near
    assert far.is_near == (samples == 40)


def test_scores_with_nan_are_another_class() -> None:
    """The index of the largest score is that of the first NaN."""
    real = normal(20, 10)
    broken = real.copy()
    broken[np.arange(20), real.argmax(1)] = np.nan
    agreement = output_agreement("logits", real, broken)
    assert agreement.value == 0
