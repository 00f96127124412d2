"""Outputs of detectors: which they are, which score a position has, and what is said of them."""

from typing import Any

import numpy as np
import pytest

from qtool.metrics.output_agreement import DETECTION, output_agreement
from qtool.metrics.output_kind import LIMIT, detections, has_detections
from qtool.verification.fidelity import compare_outputs

Array = np.ndarray[Any, Any]
FOUND = [(0, 3, 1), (0, 40, 2), (1, 7, 0), (3, 90, 2)]
"""Sample, position and class of the objects."""


def output(objects: bool, score: float = 0.8, turned: bool = False) -> Array:
    """Boxes and scores of three classes at 200 positions of four samples."""
    random = np.random.default_rng(0)
    boxes = 300 * random.random((4, 4, 200))
    background = 0.9 if objects else 0.01
    scores = background * random.random((4, 3, 200))
    rare = 0.01 * random.random((4, 1, 200))
    for sample, position, label in FOUND:
        scores[sample, :, position] = 0.01
        scores[sample, label, position] = score
        rare[sample, 0, position] = 1
    parts = [boxes, rare, scores] if objects else [boxes, scores]
    channels = np.concatenate(parts, 1).astype(np.float32)
    return channels.swapaxes(1, 2) if turned else channels


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_scores_of_both_forms(objects: bool, turned: bool) -> None:
    real = output(objects, turned=turned)
    assert has_detections(real)
    best, label = detections(real, real)
    assert sorted(zip(*np.nonzero(best > LIMIT), strict=True)) == [(s, p) for s, p, _ in FOUND]
    assert [label[s, p] for s, p, _ in FOUND] == [c for *_, c in FOUND]
    assert best[0, 3] == pytest.approx(0.8)


def test_the_first_class_is_no_probability_of_an_object() -> None:
    real = output(False)
    real[:, 4] = 0  # it never occurs
    assert has_detections(real)
    assert (detections(real, real).best > LIMIT).sum() == 3


@pytest.mark.parametrize(
    "other",
    [
        output(False)[:, 4:],  # scores alone
        output(False) / 300,  # coordinates in 0 to 1
        output(False) - 1,  # logits
        np.ones((4, 7, 200), np.float32),
        output(False)[:, :, :10],
        output(False)[0],
    ],
)
def test_other_outputs(other: Array) -> None:
    assert not has_detections(other)


def test_agreement_by_hand() -> None:
    real, new = output(False), output(False)
    new[0, 4 + 1, 3] = 0.2  # lost
    new[0, 4 + 2, 40] = 0.6
    new[1, 4 + 0, 7], new[1, 4 + 1, 7] = 0.3, 0.9  # another class
    new[2, 4 + 0, 9] = 0.5  # there is none
    same = output_agreement("output0", real, new)
    assert (same.kind, same.compared, same.threshold) == (DETECTION, 4, 0.25)
    assert same.value == pytest.approx(2 * 2 / (4 + 4))
    assert same.shift == pytest.approx((-0.6 - 0.2 + 0.1 + 0) / 4, abs=1e-6)
    assert str(same) == "F1 of detections above 0.25 50 %, their scores -0.175"
    assert not same.is_near


def test_the_headline_has_the_output_that_differs_most() -> None:
    real = output(False)
    assert compare_outputs(4, ["output0"], [real], [real]).difference == ""
    fidelity = compare_outputs(4, ["output0"], [real], [output(False, 0.2)])
    assert fidelity.difference == "F1 of detections above 0.25 0 %"


def test_numbers_differ_where_little_of_their_spread_is_kept() -> None:
    random = np.random.default_rng(0)
    real = random.normal(size=(4, 2, 300, 6)).astype(np.float32)
    noisy = real + 0.3 * random.normal(size=real.shape).astype(np.float32)
    assert compare_outputs(4, ["output"], [real], [real]).difference == ""
    assert compare_outputs(4, ["output"], [real], [noisy]).difference == "R2 0.9106"
    assert compare_outputs(4, ["present.0"], [real], [noisy]).difference == ""


def test_numbers_with_a_large_offset_differ_by_what_is_left_of_their_spread() -> None:
    real = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32) + 60
    for noise, difference in ((0.12, ""), (0.5, "R2 0.7")):  # 54 dB, and 42 dB
        noisy = real + np.float32(noise) * np.random.default_rng(1).normal(size=real.shape)
        fidelity = compare_outputs(40, ["level"], [real], [noisy.astype(np.float32)])
        assert fidelity.worst > 30
        assert fidelity.difference[:6] == difference


def test_tokens_with_a_small_divergence_do_not_differ() -> None:
    random = np.random.default_rng(0)
    real = (3 * random.normal(size=(2, 50, 40))).astype(np.float32)
    close, far = (real + f * random.normal(size=real.shape).astype(np.float32) for f in (0.05, 0.5))
    assert compare_outputs(2, ["logits"], [real], [close]).difference == ""
    assert compare_outputs(2, ["logits"], [real], [far]).difference.startswith("same token ")


def test_integer_outputs_differ_where_their_values_do() -> None:
    real = np.arange(100) % 7
    new = np.where(np.arange(100) < 3, real + 1, real)
    assert compare_outputs(100, ["class"], [real], [real]).difference == ""
    assert compare_outputs(100, ["class"], [real], [new]).difference == "97 % equal"
