"""The outcomes of a gate on files of a product, made by another tool than qtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import qtool
from tests.evaluation.onnx_files import linear_file

GENERATOR = np.random.default_rng(0)
WEIGHT = GENERATOR.normal(size=(16, 5)).astype(np.float32)
X = GENERATOR.normal(size=(600, 16)).astype(np.float32)
LABELS = (X @ WEIGHT).argmax(1)
NUMBERS = X @ WEIGHT + np.random.default_rng(2).normal(size=(600, 5))


def small(noise: float) -> np.ndarray:
    return WEIGHT + noise * np.random.default_rng(1).normal(size=WEIGHT.shape)


def broken(value: float) -> np.ndarray:
    weight = WEIGHT.copy()
    weight[0, 0] = value
    return weight


Case = tuple[np.ndarray, np.ndarray, dict[str, Any], str, str]
CASES: dict[str, Case] = {
    "equal": (WEIGHT, X, {}, "accepted", "limit 1"),
    "near": (small(1e-4), X, {"metric": "top-1"}, "accepted", "top-1"),
    "another function": (small(1.0), X, {}, "regression", "drop"),
    "better than float": (
        *(WEIGHT, X, {"metric": "top-1", "against": small(0.3)}),
        *("not comparable", "rounding makes no file better by more than 2"),
    ),
    "better, and accepted": (
        *(WEIGHT, X, {"metric": "top-1", "against": small(0.3), "other_model": True}),
        *("accepted", "limit 1"),
    ),
    "perhaps better than float": (
        *(WEIGHT, X, {"metric": "top-1", "against": small(0.03)}),
        *("accepted", "limit 1"),
    ),
    "few samples": (small(1e-4), X[:40], {}, "inconclusive", "about 299 samples would decide"),
    "NaN": (broken(np.nan), X, {}, "regression", "NaN or Inf on 600 of 600 samples"),
    "another input": (np.ones((16, 4)), X, {}, "not comparable", "outputs [[32, 4]]"),
    "a repeated sample": (WEIGHT, np.repeat(X[:9], 20, 0), {}, "not comparable", "only 9 of 180"),
    "data cut off": (
        *(WEIGHT, np.where(np.arange(600)[:, None] < 560, X, 0), {}),
        *("not comparable", "samples 560 to 599 of 600 are equal"),
    ),
    "shifted labels": (
        *(WEIGHT, X, {"metric": "top-1", "labels": np.roll(LABELS, 1)}),
        *("not comparable", "no better than with shuffled ones"),
    ),
    "an answer at random": (
        *(WEIGHT, X, {"metric": "top-1", "labels": np.random.default_rng(89).integers(0, 5, 600)}),
        *("not comparable", "no better than with shuffled ones"),
    ),
    "nearly one answer": (
        *(WEIGHT, np.concatenate([np.abs(X[:4]), X[[9]] + X[:596] / 1e3]), {"metric": "top-1"}),
        *("not comparable", "answers class"),
    ),
    "too few labels": (
        *(WEIGHT, X, {"metric": "top-1", "labels": LABELS[:-1]}),
        *("not comparable", "599 labels for 600 samples"),
    ),
    "a function": (
        *(small(1e-4), X, {"metric": lambda o, y: float((o.argmax(1) == y).mean())}),
        *("accepted", "limit"),
    ),
    "a function with labels of pairs": (
        *(WEIGHT, X, {"metric": lambda o, y: 1.0, "labels": LABELS[:300]}),
        *("not comparable", "300 labels for 600 samples of <lambda>; give one label per sample"),
    ),
    "f1": (small(1e-4), X, {"metric": "f1"}, "accepted", "F1"),
    "mean absolute error": (
        *(small(1e-4), X, {"metric": "mae", "labels": NUMBERS, "max_drop": None}),
        *("accepted", "MAE  0.7"),
    ),
    "mean squared error": (
        *(0.9 * WEIGHT, X, {"metric": "mse", "labels": NUMBERS, "max_drop": None}),
        *("regression", "MSE"),
    ),
    "map": (small(1e-4), X, {"metric": "map"}, "accepted", "mAP"),
    "recall": (small(1e-4), X, {"metric": "recall@5"}, "accepted", "limit 1"),
    "spearman of pairs": (
        *(small(1e-4), X, {"metric": "spearman", "labels": GENERATOR.normal(size=300)}),
        *("not comparable", "shuffled"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outcomes(name: str, tmp_path: Path) -> None:
    weight, data, options, outcome, text = CASES[name]
    options = dict(options)
    real = linear_file(tmp_path / "float.onnx", options.pop("against", WEIGHT))
    file = linear_file(tmp_path / "other.onnx", weight)
    batches = np.split(data, range(32, len(data), 32))
    labels = options.pop("labels", LABELS[: len(data)])
    result = qtool.gate(file, real, batches, labels, **{"max_drop": 0.01, **options})
    assert str(result.outcome) == outcome, result
    assert text in str(result)
    cases = ET.fromstring(result.junit()).findall("testcase")
    assert len(cases) == len(result.checks)
    assert any(len(case) for case in cases) == (outcome != "accepted")


def test_a_file_that_does_not_load_is_a_regression(tmp_path: Path) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    (tmp_path / "cut.onnx").write_bytes(real.read_bytes()[:200])
    result = qtool.gate(tmp_path / "cut.onnx", real, [X])
    assert result.exit_code == 1
    assert "it cannot be run" in str(result)


def test_labels_that_the_metric_does_not_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    qtool.gate(real, real, [X], LABELS)
    assert "agreement uses no labels; name a metric that does with 'metric'" in caplog.text


def test_refusals(tmp_path: Path) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    with pytest.raises(qtool.OptionError, match="unknown metric 'top1'"):
        qtool.gate(real, real, [X], metric="top1")
    with pytest.raises(qtool.OptionError, match="needs class numbers"):
        qtool.gate(real, real, [X], metric="top-1")
    with pytest.raises(qtool.FileError, match="no such file"):
        qtool.gate(tmp_path / "no.onnx", real, [X])
