"""The small detector: its scenes, what it finds, and its metric."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from examples.detector import metric, scenes
from examples.detector.network import Detector, detector

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
