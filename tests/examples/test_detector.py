"""The small detector: its scenes, what it finds, and its metric."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from examples.detector import metric, scenes
from examples.detector.network import Detector, detector
from examples.detector.train import targets

pytestmark = pytest.mark.matrix
WEIGHTS = Path(scenes.ROOT) / "examples" / "detector" / "weights.safetensors"


@pytest.fixture
def net() -> Detector:
    found = detector()
    found.load_state_dict(load_file(WEIGHTS), strict=True)
    return found


def few(count: int = 24) -> scenes.Scenes:
    found = scenes.held_out()
    return scenes.Scenes(found.images[:count], found.boxes[:count], found.labels[:count])


def test_scenes_are_what_the_network_takes() -> None:
    found = few()
    assert found.images.shape == (24, 1, 64, 64)
    assert float(found.images.min()) >= 0
    assert float(found.images.max()) <= 1
    for boxes, labels in zip(found.boxes, found.labels, strict=True):
        assert len(boxes) == len(labels) >= 1
        assert (boxes >= 0).all()
        assert (boxes <= 64).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert WEIGHTS.stat().st_size < 2**20
    assert [len(batch) for batch in scenes.calibration()] == [32] * 4


def test_most_digits_are_found(net: Detector) -> None:
    found, right, count = few(), 0, 0
    with torch.no_grad():
        outputs = net(found.images)
    for output, boxes, labels in zip(outputs, found.boxes, found.labels, strict=True):
        picked = metric.selected(output)
        for box, label in zip(boxes.tolist(), labels, strict=True):
            count += 1
            right += any(k == label and metric._overlap(b, box) > 0.5 for b, _, k in picked)
    assert right >= 0.9 * count


def test_of_boxes_that_overlap_the_best_is_kept() -> None:
    output = torch.zeros(14, 4)
    output[:4] = torch.tensor([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [30, 30, 40, 40]]).T
    output[4 + 3, :2] = torch.tensor([0.6, 0.9])  # one class, nearly one place
    output[4 + 5, 2] = 0.4  # another class there
    output[4 + 3, 3] = 0.01  # next to nothing
    assert [(k, round(s, 1)) for _, s, k in metric.selected(output)] == [(3, 0.9), (5, 0.4)]


def test_what_is_learned_is_what_the_network_gives(net: Detector) -> None:
    found = few(4)
    reach, kinds = targets(net, found)
    boxes = net.boxes(reach)
    for image, (wanted, labels) in enumerate(zip(found.boxes, found.labels, strict=True)):
        for label in labels:
            there = boxes[image][:, kinds[image] == label].T.numpy()
            near = np.abs(there[:, None] - wanted[labels == label][None]).max(2).min(1)
            assert near.max() < 1e-4


def test_the_metric_of_a_perfect_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocotools")
    found = few()
    monkeypatch.setattr(metric, "held_out", lambda: found)
    outputs = torch.zeros(len(found.images), 14, 64)
    for output, boxes, labels in zip(outputs, found.boxes, found.labels, strict=True):
        for at, (box, label) in enumerate(zip(boxes, labels, strict=True)):
            output[:4, at], output[4 + label, at] = torch.from_numpy(box), 0.9
    assert metric.mean_average_precision(lambda x: outputs) == {"mAP": 1.0, "mAP at 0.5": 1.0}
    assert metric.mean_average_precision(lambda x: outputs.roll(1, 0))["mAP"] < 0.2
