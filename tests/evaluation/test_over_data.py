"""Metrics of the outputs for all data and its labels."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import DataError
from qtool.evaluation.user_metrics import over_data
from tests.evaluation.onnx_files import linear_file

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=GENERATOR)
MASKS = torch.randint(0, 3, (40, 2), generator=GENERATOR)


class TwoHeads(nn.Module):
    """A network with two outputs, on which a metric depends together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.body(x).relu()
        return tuple(head(hidden) for head in self.heads)


def both_right(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    assert len(outputs) == 2
    best = torch.stack([o.argmax(1) for o in outputs], 1)
    return (best == labels).all(1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("two") / "two.onnx"
    quantized = qtool.quantize(TwoHeads().eval(), X, accuracy="fast")
    quantized.export(path)
    return path


def _pairs():
    return list(zip(X.split(16), MASKS.split(16), strict=True))


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        pytest.param(_pairs, None, id="tuples"),
        pytest.param(lambda: iter(_pairs()), None, id="an iterator"),
        pytest.param(lambda: [{"x": x, "labels": m} for x, m in _pairs()], None, id="dicts"),
        pytest.param(lambda: X, MASKS, id="labels of their own"),
    ],
)
def test_outputs_and_labels_of_all_data(file, data, labels):
    model = TwoHeads().eval()
    result = qtool.evaluate(file, model, data(), labels, function=both_right, seconds=0.01)
    found = result.accuracy.metrics
    with torch.no_grad():
        known = both_right(model(X), MASKS).double().mean()
    assert found[0].name == "both_right"
    assert found[0].values[0] == pytest.approx(float(known))
    assert found[0].intervals[1] is not None


def test_without_labels(file):
    with pytest.raises(DataError, match="the data has no labels; pass them, or batches"):
        qtool.evaluate(file, TwoHeads().eval(), [X], function=both_right, seconds=0.01)


def test_a_function_of_a_model_stays(file):
    def of_a_model(model: Any, limit: float = 0.5) -> float:
        return limit

    assert over_data(of_a_model, [X], MASKS) == (of_a_model, [X], MASKS)


def test_batches_of_different_shapes_stay_apart(tmp_path):
    def shapes(outputs: Any, labels: Any) -> float:
        assert [o.shape[1] for o in labels["mask"]] == [2, 3]
        assert labels["name"] == ["a", "b"]
        return float(len(outputs))

    model = qtool.evaluation.user_metrics.FileFunction(
        linear_file(tmp_path / "a.onnx", np.ones((6, 3)))
    )
    data = [
        (x, {"mask": torch.zeros(2, n), "name": name})
        for x, n, name in ((X[:2], 2, "a"), (X[:2], 3, "b"))
    ]
    function, *_ = over_data(shapes, data, None)
    assert function(model) == 4.0
