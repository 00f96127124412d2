"""Evaluation data that does not fit is seen before the model is captured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qtool
from qtool.api import model_parts
from qtool.core.errors import QtoolError
from tests.mistakes.nets import IMAGES, flat_net, image_net

VECTORS = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))


class CapturedError(Exception):
    """The model was captured."""


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CapturedError

    monkeypatch.setattr(model_parts, "quantize", fail)


def _quantize(
    net: Callable[[], Any], data: Any, evaluation: Any, labels: Any = None, kind: str = "evaluation"
) -> None:
    judged = qtool.EvaluationData(evaluation, labels, kind)
    qtool.quantize_to_file(net(), data, Path("net.onnx"), evaluation=judged)


@pytest.mark.parametrize(
    ("net", "data", "evaluation", "labels", "message"),
    [
        (flat_net, VECTORS, VECTORS[:, :9], None, "in 'evaluation', the model does not run on"),
        (image_net, [IMAGES], [IMAGES[:, :1]], None, "in 'evaluation', the model does not run on"),
        (flat_net, VECTORS, VECTORS, [1, 2, 3, 1] * 10, "labels start at 1: subtract 1"),
        (flat_net, VECTORS, VECTORS, [0, 9] * 20, "are 0 to 9, the model has 3 classes"),
        (flat_net, VECTORS, VECTORS, ["a", "b"] * 20, "the labels are names, such as 'a'"),
        (flat_net, VECTORS, VECTORS, [0, 1], "2 labels for 40 samples"),
    ],
)
def test_refused(net: Any, data: Any, evaluation: Any, labels: Any, message: str) -> None:
    with pytest.raises(QtoolError, match=message):
        _quantize(net, data, evaluation, labels)


@pytest.mark.parametrize(
    ("net", "data", "evaluation", "labels"),
    [
        (flat_net, VECTORS, VECTORS, [0, 1, 2, 1] * 10),
        (flat_net, VECTORS, VECTORS.double(), None),
        (flat_net, VECTORS, VECTORS, np.ones((40, 3)) / 2),  # numbers to predict
        (flat_net, VECTORS, iter([VECTORS[:, :9]]), None),  # can be read once
        (flat_net, VECTORS[:, :9], VECTORS[:, :9], None),  # the model, or both
        (lambda: flat_net().train(), VECTORS, VECTORS[:, :9], None),
        (lambda: flat_net().double(), VECTORS, VECTORS, None),
    ],
)
def test_captured_first(net: Any, data: Any, evaluation: Any, labels: Any) -> None:
    with pytest.raises(CapturedError):
        _quantize(net, data, evaluation, labels)


def test_the_calibration_data_is_not_called_evaluation_data() -> None:
    with pytest.raises(CapturedError):
        _quantize(flat_net, VECTORS[:, :9], VECTORS[:, :9], None, "calibration")
