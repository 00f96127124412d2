"""Each metric of a gate accepts a file that is nearly the float file, and finds one that is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qtool
from qtool.metrics.named_metrics import METRICS
from qtool.metrics.set_statistics import decode
from tests.evaluation.language_models import texts, write_tagger
from tests.evaluation.onnx_files import linear_file

GENERATOR = np.random.default_rng(0)
WEIGHT = GENERATOR.normal(size=(16, 12)).astype(np.float32)
X = GENERATOR.normal(size=(600, 16)).astype(np.float32)
STEPS = GENERATOR.normal(size=(400, 8, 16)).astype(np.float32)
CLASSES = (X @ WEIGHT).argmax(1)
NUMBERS = X @ WEIGHT + GENERATOR.normal(size=(600, 12)) / 10
UNITS = X @ WEIGHT / np.linalg.norm(X @ WEIGHT, axis=1, keepdims=True)
COSINES = (UNITS[::2] * UNITS[1::2]).sum(1)  # of the vectors of each pair


def words() -> np.ndarray:
    """What the float file says in CTC, padded with -1."""
    said = decode(STEPS @ WEIGHT, 0)
    longest = max(map(len, said))
    return np.array([[*each, *([-1] * (longest - len(each)))] for each in said])


def share(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A user's function: whether each class is right."""
    return (scores.argmax(1) == labels).astype(float)


CASES: dict[str, tuple[np.ndarray, Any]] = {
    "agreement": (X, None),
    "top-1": (X, CLASSES),
    "top-5": (X, CLASSES),
    "f1": (X, CLASSES),
    "map": (X, CLASSES),
    "mae": (X, NUMBERS),
    "mse": (X, NUMBERS),
    "r2": (X, NUMBERS),
    "recall@3": (X, CLASSES),
    "spearman": (X, COSINES),
    "wer": (STEPS, words()),
}


def decide(folder: Path, metric: Any, noise: float) -> qtool.GateResult:
    data, labels = CASES["top-1" if metric is share else metric]
    spoiled = WEIGHT + noise * np.random.default_rng(1).normal(size=WEIGHT.shape)
    real = linear_file(folder / "float.onnx", WEIGHT, rank=data.ndim)
    file = linear_file(folder / "other.onnx", spoiled, rank=data.ndim)
    batches = np.split(data, range(50, len(data), 50))
    return qtool.gate(file, real, batches, labels, metric=metric, max_drop=0.02, other_model=True)


@pytest.mark.parametrize("metric", [*CASES, share], ids=lambda m: getattr(m, "__name__", m))
def test_outcomes(metric: Any, tmp_path: Path) -> None:
    near, far = (decide(tmp_path, metric, noise) for noise in (1e-5, 3.0))
    assert str(near.outcome) == "accepted", near
    assert str(far.outcome) == "regression", far


def test_perplexity(tmp_path: Path) -> None:
    batches = texts((50,) * 8, 12)
    real = write_tagger(tmp_path / "float.onnx")
    for noise, outcome in ((1e-5, "accepted"), (0.5, "regression")):
        file = write_tagger(tmp_path / "other.onnx", noise=noise)
        result = qtool.gate(file, real, batches, metric="perplexity", other_model=True)
        assert str(result.outcome) == outcome, result


def test_every_metric_is_here() -> None:
    assert {name.partition("@")[0] for name in CASES} | {"perplexity"} == set(METRICS)


ERRORS = NUMBERS - X @ WEIGHT


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("mae", np.abs(ERRORS).mean()),
        ("mse", np.square(ERRORS).mean()),
        ("r2", (1 - np.square(ERRORS).mean(0) / NUMBERS.var(0)).mean()),  # of each output
    ],
)
def test_errors_of_numbers_by_their_definition(
    metric: str, expected: float, tmp_path: Path
) -> None:
    result = decide(tmp_path, metric, 0.1)
    assert result.metric.float_ == pytest.approx(expected, rel=1e-5)


def test_classes_are_no_numbers_to_predict(tmp_path: Path) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    result = qtool.gate(real, real, [X], CLASSES, metric="mae")
    assert "labels that are numbers to predict, not classes" in str(result)
    assert result.exit_code == 4
