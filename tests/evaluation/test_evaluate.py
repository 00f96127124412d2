"""Evaluation: numbers against numpy by hand, and data that does not fit its labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import qtool
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.core.records import from_json
from qtool.evaluation.evaluate import evaluate_files
from qtool.evaluation.evaluation import Evaluation, ModelFigures
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.metrics.metric import Metric
from tests.backends.onnx.export.networks import exported, float_file, run, samples
from tests.evaluation.language_models import texts, write_tagger

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
    return evaluate_files(plain(file, "linear"), file, data, labels, seconds=0)


def plain(file: Path, name: str) -> Path:
    """The float file of a network, beside its int8 file."""
    path = file.with_name("float.onnx")
    path.write_bytes(float_file(name))
    return path


def scores() -> tuple[np.ndarray, np.ndarray]:
    """Of the float and of the int8 model."""
    return tuple(run(data("linear"), (inputs(),))[0] for data in (float_file, exported))


def test_numbers_are_those_computed_by_hand(file: Path) -> None:
    expected, actual = scores()
    labels = expected.argmax(1)
    labels[:6] = (labels[:6] + 1) % 3  # the float model is wrong on 6 of 24
    found = evaluated(file, labels)
    assert found.samples == 24
    assert found.batch == 1
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


@pytest.mark.parametrize(
    ("data", "notes"),
    [
        ([(inputs(), torch.zeros(24))], True),
        (torch.utils.data.DataLoader([(x, 0) for x in inputs()], batch_size=8), True),
        ([inputs()], False),
        (inputs(), False),
    ],
)
def test_labels_of_a_loader_are_left_out_with_a_note(
    file: Path, data: object, notes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    result = qtool.evaluate(file, plain(file, "linear"), data, seconds=0)
    assert (result.samples, result.metrics) == (24, ())
    assert ("pass labels to measure accuracy with them" in caplog.text) == notes


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"missing\.onnx"):
        evaluated(tmp_path / "missing.onnx")


def test_a_model_of_several_inputs(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    path.write_bytes(exported("two_inputs"))
    data = [Batch(samples("two_inputs", 8))]
    found = evaluate_files(plain(path, "two_inputs"), path, data, seconds=0)
    assert [each.kind for each in found.yardsticks] == ["numbers"]
    assert found.yardsticks[0].value > 0.99


def test_equal_files_have_no_error(file: Path) -> None:
    found = evaluate_files(file, file, [Batch((inputs(),))], seconds=0)
    assert ([each.value for each in found.yardsticks], found.sqnr_db) == ([1.0], None)


def test_a_file_that_grew_is_warned_of() -> None:
    sides = (ModelFigures(0.75, 2048, 1.5, 0.0), ModelFigures(0.5, 1024, 0.5, 1.0))
    metric = Metric("top-1", True, True, "built in", (0.75, 0.5), (0.0, 0.25), (None, None))
    spreads = (Spread(1.5, 1.5, 1.5), Spread(0.5, 0.5, 0.5))
    ratios = (Ratio(1, 1, 1, 1, 1), Ratio(3, 3, 3, 3, 3))
    timing = Timing(8, 1, 9, 1.0, spreads, ratios)
    result = Evaluation(
        24, 8, 1, *sides, 0.5, 31.25, 3.0, (metric,), "classes", 0, (timing,), ("look out",)
    )
    grown = replace(result, int8=replace(sides[1], size_bytes=4301, unknown_operators=2))
    assert "  size       4.20 KiB, 2.10 times the float file's 2.00 KiB" in str(grown)
    warning = "warning: the file grew: 4.20 KiB, 2.10 times the float file's 2.00 KiB"
    assert str(grown).splitlines()[-2:] == [warning, "warning: look out"]
    assert "100 % of the MACs, and 2 operators whose work is not known" in str(grown)
    assert "grew" not in str(replace(result, int8=replace(sides[1], size_bytes=2049)))
    equal = dict(replace(result, agreement=None, sqnr_db=None).summary().rows)
    assert equal["SQNR"] == "no error (24 samples)"
    assert "agreement" not in equal


def test_a_float_file_is_marked(file: Path) -> None:
    path = plain(file, "linear")
    result = evaluate_files(path, path, [Batch((inputs(),))], seconds=0)
    assert "float.onnx is not quantized" in result.warnings[0]
    assert result.int8.integer_mac_share == 0
    assert str(result).splitlines()[-1].startswith("warning: float.onnx is not quantized")


def test_metrics_of_the_user_come_first(file: Path) -> None:
    def largest(model):
        return float(model(inputs()).max())

    result = evaluate_files(
        plain(file, "linear"),
        file,
        [Batch((inputs(),))],
        [0] * 24,
        function=largest,
        lower_is_better=["largest"],
        seconds=0,
    )
    assert [m.name for m in result.metrics] == ["largest", "top-1"]
    assert not result.metrics[0].higher_is_better


def test_a_language_model_has_perplexity_and_the_time_of_a_prompt(tmp_path: Path) -> None:
    files = [write_tagger(tmp_path / f"{n}.onnx", noise=n * 0.3) for n in range(2)]
    result = evaluate_files(*files, texts(), seconds=0)
    assert [m.name for m in result.metrics] == ["perplexity"]
    assert (result.scores, result.tokens) == ("next tokens", 5 + 8 + 8 + 5 + 8)
    assert [(t.phase, t.tokens, t.cached) for t in result.timings] == [("prompt", 9, 0)]
    assert "same next token on" in str(result)
    assert from_json(Evaluation, json.loads(json.dumps(result.to_json()))) == result
