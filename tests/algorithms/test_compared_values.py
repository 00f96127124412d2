"""What the error of a network is measured on: scores of detectors count besides their boxes."""

from __future__ import annotations

import pytest
import torch

from qtool.algorithms.compared_values import worst_error


def detections(score: float) -> torch.Tensor:
    """Boxes and two classes at 200 positions of three samples, an object in each sample."""
    generator = torch.Generator().manual_seed(0)
    boxes = 300 * torch.rand(3, 4, 200, generator=generator)
    scores = torch.zeros(3, 2, 200)
    scores[:, 0, 5] = score
    return torch.cat([boxes, scores], 1)


def test_scores_of_a_detector() -> None:
    pairs = [([detections(0.8)[:2]], [detections(0.4)[:2]]), ([detections(0.8)[2:]],) * 2]
    assert worst_error(pairs) == pytest.approx(0.25 * 2 / 3)


def test_the_worst_of_several_outputs() -> None:
    real = [torch.ones(2, 3), torch.ones(2, 5, 7)]
    coded = [0.9 * torch.ones(2, 3), 0.5 * torch.ones(2, 5, 7)]
    assert worst_error([(real, coded)]) == pytest.approx(0.25)
    assert worst_error([(real, real)]) == 0


def test_batches_of_other_lengths() -> None:
    """Texts in batches of their own lengths are no detections."""
    texts = [torch.ones(2, 67, 10), torch.ones(2, 80, 10)]
    assert worst_error([([each], [0.5 * each]) for each in texts]) == pytest.approx(0.25)
