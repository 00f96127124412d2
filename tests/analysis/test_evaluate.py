"""Evaluation: numbers against numpy by hand, and data that does not fit its labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from qtool.analysis import Evaluation, evaluate, sqnr
from qtool.data import Batch
from qtool.errors import DataError, VerificationError
from tests.export.networks import exported, float_file, quantized, run, samples

BATCH = 8


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "int8.onnx"
    path.write_bytes(exported("linear"))
    return path


def inputs() -> torch.Tensor:
    return samples("linear", 24, seed=7)[0]


def evaluated(file: Path, labels: np.ndarray | None = None) -> Evaluation:
    data = [Batch((x,)) for x in inputs().split(BATCH)]
    return evaluate(file, quantized("linear").graph, data, labels, seconds=0)


def scores() -> tuple[np.ndarray, np.ndarray]:
    """Of the float and of the int8 model."""
    return tuple(run(data("linear"), (inputs(),))[0] for data in (float_file, exported))


def test_numbers_are_those_computed_by_hand(file: Path) -> None:
    expected, actual = scores()
    labels = expected.argmax(1)
    labels[:6] = (labels[:6] + 1) % 3  # the float model is wrong on 6 of 24
    found = evaluated(file, labels)
    assert found.samples == 24
    assert found.batch == BATCH
    assert found.float_.accuracy == 18 / 24
    assert found.int8.accuracy == (actual.argmax(1) == labels).mean()
    assert found.agreement == (actual.argmax(1) == expected.argmax(1)).mean()
    noise = ((expected.astype(np.float64) - actual) ** 2).sum()
    by_hand = 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise)
    assert found.sqnr_db == pytest.approx(by_hand, rel=1e-6)
    assert found.sqnr_db > 25
    assert (found.float_.integer_mac_share, found.int8.integer_mac_share) == (0, 1)
    assert found.speedup > 0
    told = found.to_json()
    assert {"samples", "float", "int8", "agreement", "sqnr_db", "speedup"} <= set(told)
    assert told["float"]["accuracy"] == 18 / 24
    assert found.int8.size_bytes == len(exported("linear"))
    assert found.float_.size_bytes > 0


def test_another_model_agrees_less(file: Path) -> None:
    """The comparison can fail: weights that were made negative."""
    model = onnx.load(file)
    (weight,) = (i for i in model.graph.initializer if i.name == "3.weight.codes")
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
    onnx.save(model, file)
    found = evaluated(file)
    assert found.agreement < 1
    assert found.sqnr_db < 10


def test_labels_are_optional(file: Path) -> None:
    found = evaluated(file)
    assert (found.float_.accuracy, found.int8.accuracy) == (None, None)


def test_another_number_of_labels_is_refused(file: Path) -> None:
    with pytest.raises(DataError, match="23 labels for 24 samples"):
        evaluated(file, np.zeros(23, np.int64))


def test_empty_data_is_refused(file: Path) -> None:
    with pytest.raises(DataError, match="the evaluation data is empty; give at least one batch"):
        evaluate(file, quantized("linear").graph, [], seconds=0)


def test_a_batch_that_does_not_fit_is_named(file: Path) -> None:
    data = [Batch((inputs(),)), Batch((inputs()[:, :5],))]
    with pytest.raises(DataError, match=r"batch 1, input 'input' has shape \[24, 5\]"):
        evaluate(file, quantized("linear").graph, data, seconds=0)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"missing\.onnx"):
        evaluated(tmp_path / "missing.onnx")


def test_a_model_of_several_inputs(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    path.write_bytes(exported("two_inputs"))
    found = evaluate(
        path, quantized("two_inputs").graph, [Batch(samples("two_inputs", 8))], seconds=0
    )
    assert found.agreement > 0.8


@pytest.mark.parametrize(
    ("signal", "other", "decibel"),
    [
        ([3.0, 4.0], [3.0, 4.5], 20.0),  # 25 / 0.25
        ([10.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0, 1.0], [1.0, 1.0], np.inf),
        ([0.0, 0.0], [0.0, 0.0], np.inf),
        ([0.0, 0.0], [0.0, 1.0], -np.inf),
    ],
)
def test_sqnr(signal: list[float], other: list[float], decibel: float) -> None:
    assert sqnr(np.array(signal, np.float32), np.array(other, np.float32)) == pytest.approx(decibel)
