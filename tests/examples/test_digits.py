"""The sample network and its data are what the quick start and the documentation say."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from examples.digits.network import digits_net

pytestmark = pytest.mark.matrix


def test_weights_fit_the_network(digits):
    weights = load_file(digits.weights)
    net = digits_net()
    net.load_state_dict(weights, strict=True)
    counters = {name for name in weights if name.endswith("num_batches_tracked")}
    assert all(weights[name].dtype == torch.float32 for name in weights.keys() - counters)
    assert not net.training
    assert not any(module.training for module in net.modules())


def test_sample_files_are_small(digits):
    assert digits.weights.stat().st_size < 2**20
    assert digits.evaluation.stat().st_size < 2**16
    assert sum(f.stat().st_size for f in digits.calibration.iterdir()) < 2**16


@pytest.mark.parametrize(
    ("name", "count"), [("calibration_images", 200), ("images", 450)], ids=["calibration", "eval"]
)
def test_images_are_in_input_form(digits, name, count):
    images = getattr(digits, name)
    assert images.dtype == np.float32
    assert images.shape == (count, 1, 16, 16)
    assert images.min() == 0
    assert images.max() == 1


def test_labels_match_images(digits):
    assert digits.labels.dtype == np.int64
    assert digits.labels.shape == (len(digits.images),)
    assert set(digits.labels.tolist()) == set(range(10))


def test_calibration_and_evaluation_images_are_disjoint(digits):
    calibration = {image.tobytes() for image in digits.calibration_images}
    evaluation = {image.tobytes() for image in digits.images}
    assert len(calibration) == len(digits.calibration_images)
    assert len(evaluation) == len(digits.images)
    assert not calibration & evaluation


def test_float_accuracy(digits, digits_model):
    with torch.no_grad():
        predicted = digits_model(torch.from_numpy(digits.images)).argmax(1).numpy()
    assert (predicted == digits.labels).mean() >= 0.98


def test_network_holds_what_it_is_a_sample_of(digits_model):
    kinds = {type(module) for module in digits_model.modules()}
    assert {nn.BatchNorm2d, nn.ReLU, nn.ReLU6, nn.MaxPool2d, nn.Dropout, nn.Linear} <= kinds
    graph = torch.export.export(digits_model, (torch.zeros(2, 1, 16, 16),)).graph
    targets = [str(node.target) for node in graph.nodes]
    assert targets.count("aten.add.Tensor") == 2
    assert targets.count("aten.cat.default") == 1
