"""Columns of a DataFrame by name: in the order of the calibration data, and labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.core.array_batches import ArrayBatches
from qtool.core.errors import DataError
from qtool.core.frame_columns import in_column_order, input_columns, split_labels
from tests.core.test_array_batches import Frame

ROWS = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
FRAME = Frame(**dict(zip("abc", ROWS.T, strict=True)))


def batches_of(*names: str) -> ArrayBatches:
    return ArrayBatches({"": ROWS[:, ["abc".index(name) for name in names]]}, columns=names)


@pytest.mark.parametrize("data", [FRAME[["c", "a", "b"]], batches_of("c", "a", "b")])
def test_columns_come_in_the_order_of_the_calibration_data(data: Any, caplog: Any) -> None:
    ordered = in_column_order(data, ["a", "b", "c"])
    assert input_columns(ordered) == ("a", "b", "c")
    rows = ordered.to_numpy() if isinstance(ordered, Frame) else ordered.arrays[""]
    assert np.array_equal(rows, ROWS)
    assert "taken by name, as in the calibration data: a, b, c" in caplog.text
    assert input_columns(in_column_order(data, ["c", "b"])) == ("c", "b")


@pytest.mark.parametrize("columns", [(), ("0", "1", "2"), ("a", "b", "c")])
def test_other_data_keeps_its_order(columns: tuple[str, ...]) -> None:
    assert in_column_order(FRAME, columns) is FRAME
    assert in_column_order(ROWS, columns) is ROWS


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(DataError, match=r"lacks the column 'd', .* it has a, b, c; give the"):
        in_column_order(FRAME, ["a", "d"])


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).eval()


@pytest.fixture(scope="module")
def file(network: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "int8.onnx"
    qtool.quantize(network, FRAME, accuracy="fast").export(path)  # type: ignore[arg-type]
    return path


def test_a_file_is_evaluated_on_its_columns_and_labels_of_a_column(
    network: nn.Module, file: Path, caplog: Any
) -> None:
    with torch.no_grad():
        right = network(torch.from_numpy(ROWS)).argmax(1).numpy()
    frame = Frame(answer=right, **{name: FRAME[name] for name in "cba"})
    options = qtool.ReportOptions(labels="answer")
    for labels in ("answer", right):
        data: Any = frame if isinstance(labels, str) else FRAME[["c", "b", "a"]]
        result = qtool.evaluate(file, network, data, labels, seconds=0.01)
        top1 = result.accuracy.metrics[0]
        assert (top1.name, top1.values[0]) == ("top-1", 1)
    data, values = split_labels(frame, options.labels)
    assert (data.columns, list(values)) == (["c", "b", "a"], list(right))
    qtool.verify(file, data)
    assert "as in the calibration data: a, b, c" in caplog.text
