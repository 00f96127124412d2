"""Scores of files on the evaluation data: error, metric, interval, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qtool.backends.onnxruntime.session import run, session
from qtool.evaluation.measure.accuracy import summarize
from qtool.metrics.output_agreement import output_agreement
from qtool.plugins.search import judge as module
from qtool.plugins.search.judge import Judge
from tests.evaluation.language_models import texts, write_tagger
from tests.evaluation.measured import measure_outputs
from tests.evaluation.onnx_files import linear_file

COUNT = 32


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two linear layers of four classes; the second one has noise on its weight."""
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((8, 4))
    other = weight + 0.3 * generator.standard_normal((8, 4))
    return linear_file(tmp_path / "float.onnx", weight), linear_file(tmp_path / "int8.onnx", other)


@pytest.fixture
def data() -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(1)
    return [generator.standard_normal((COUNT // 2, 8)).astype(np.float32) for _ in range(2)]


def outputs_of(file: Path, data: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate([run(session(file), [x])[0] for x in data])


def test_the_float_file_has_no_error(files: tuple[Path, Path], data: Any) -> None:
    score = Judge(files[0], data).score(files[0])
    assert (score.samples, score.sqnr_db, score.noise) == (COUNT, None, 0.0)
    assert score.metric is not None
    assert (score.metric.name, score.metric.values) == (
        "agreement with float (numbers)",
        (1.0, 1.0),
    )
    assert (score.drop, score.worst_case_drop) == (0.0, 0.0)


def test_error_and_agreement_without_labels(files: tuple[Path, Path], data: Any) -> None:
    before, after = (outputs_of(f, data).astype(np.float64) for f in files)
    score = Judge(files[0], data).score(files[1])
    noise = np.square(before - after).sum() / np.square(before).sum()
    assert score.noise == pytest.approx(noise, rel=1e-5)
    assert score.sqnr_db == pytest.approx(-10 * np.log10(noise), abs=1e-4)
    kept = output_agreement("y", before, after).value
    assert kept < 1
    assert score.metric is not None
    assert score.metric.values == (1.0, pytest.approx(kept, rel=1e-5))
    assert score.drop == pytest.approx(1 - kept, rel=1e-5)
    interval = score.metric.intervals[1]
    assert interval is not None
    assert score.worst_case_drop == interval.high


def test_top_1_with_labels_and_a_wider_interval_for_more_confidence(
    files: tuple[Path, Path], data: Any
) -> None:
    labels = outputs_of(files[0], data).argmax(1)
    narrow, wide = (
        Judge(files[0], data, labels, confidence=c).score(files[1]) for c in (0.5, 0.99)
    )
    assert narrow.metric is not None
    assert (narrow.metric.name, narrow.metric.values[0]) == ("top-1", 1.0)
    assert narrow.drop == wide.drop
    assert narrow.worst_case_drop is not None
    assert wide.worst_case_drop is not None
    assert wide.worst_case_drop > narrow.worst_case_drop


def test_a_function_that_returns_one_number_has_no_interval(
    files: tuple[Path, Path], data: Any
) -> None:
    batch = torch.from_numpy(data[0])

    def loss(model: Any) -> float:
        return float(model(batch).square().mean())

    score = Judge(files[0], data, function=loss, lower_is_better=["loss"]).score(files[1])
    assert score.metric is not None
    assert (score.metric.name, score.metric.intervals) == ("loss", (None, None))
    real, own = score.metric.values
    assert score.drop == pytest.approx(own - real)
    assert score.worst_case_drop == score.drop


def test_outputs_over_the_limit_are_computed_again(
    files: tuple[Path, Path], data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Judge(files[0], data).score(files[1])
    monkeypatch.setattr(module, "MAX_KEPT", 0)
    judge = Judge(files[0], data)
    assert judge.score(files[1]) == judge.score(files[1]) == whole


def test_a_language_model_is_judged_by_perplexity_without_labels(tmp_path: Path) -> None:
    files = [write_tagger(tmp_path / f"{n}.onnx", noise=n * 0.3) for n in range(2)]
    score = Judge(files[0], texts((3, 4))).score(files[1])
    (metric,) = summarize(measure_outputs(files, texts((3, 4))), None).metrics
    assert score.metric == metric
    assert (metric.name, metric.percent, metric.higher_is_better) == ("perplexity", False, False)
    interval = metric.intervals[1]
    assert (score.drop, score.worst_case_drop) == (metric.drops[1], interval.high)
    real, own = metric.values
    change = f"{interval.low:+.3g} to {interval.high:+.3g}"
    assert score.text == f"perplexity {real:.5g} -> {own:.5g} ({change})"
