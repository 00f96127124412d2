"""The sample network and its data are what the quick start and the documentation say."""

import pytest
import torch

pytestmark = pytest.mark.matrix


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
