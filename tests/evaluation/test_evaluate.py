"""Evaluation: numbers against numpy by hand, and data that does not fit its labels."""

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
from qtool.evaluation.evaluation import Evaluation, ModelFacts
from qtool.evaluation.labelled_data import LabelledData
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.accuracy import Accuracy, ModelAccuracy
from qtool.evaluation.subject import Subject
from qtool.metrics.intervals import Interval
from qtool.metrics.metric import Metric
from tests.backends.onnx.export.networks import exported, float_file, run, samples
from tests.evaluation.language_models import texts, write_tagger

BATCH = 8
ALL = Interval(1.0, 1.0, 1.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "int8.onnx"
    path.write_bytes(exported("linear"))
    return path


def inputs() -> torch.Tensor:
    return samples("linear", 24, seed=7)[0]


def evaluated(file: Path, labels: np.ndarray | None = None) -> Evaluation:
    data = [Batch((x,)) for x in inputs().split(BATCH)]
    judged = LabelledData(data, labels)
    return evaluate_files(pair(plain(file, "linear"), file), judged, seconds=0)


def pair(*files: Path) -> list[Subject]:
    return [Subject(file.stem, file, "") for file in files]


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
    figures, own = found.accuracy, found.accuracy.models[1]
    assert figures.samples == 24
    assert found.latency[0].batch == 1
    assert figures.metrics[0].values == (18 / 24, (actual.argmax(1) == labels).mean())
    assert own.agreement.value == (actual.argmax(1) == expected.argmax(1)).mean()
    noise = ((expected.astype(np.float64) - actual) ** 2).sum()
    by_hand = 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise)
    assert own.sqnr_db == pytest.approx(by_hand, rel=1e-6)
    assert own.sqnr_db > 25
    assert [m.integer_mac_share for m in found.models] == [0, 1]
    assert found.speedup.median > 0
    assert found.models[1].size_bytes == len(exported("linear"))
    assert found.models[0].size_bytes > 0


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
    assert (result.accuracy.samples, result.accuracy.metrics) == (24, ())
    assert ("pass labels to measure accuracy with them" in caplog.text) == notes


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"missing\.onnx"):
        evaluated(tmp_path / "missing.onnx")


def test_a_model_of_several_inputs(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    path.write_bytes(exported("two_inputs"))
    data = [Batch(samples("two_inputs", 8))]
    found = evaluate_files(pair(plain(path, "two_inputs"), path), LabelledData(data), seconds=0)
    (yardstick,) = found.accuracy.models[1].yardsticks
    assert yardstick.kind == "numbers"
    assert yardstick.value > 0.99


def test_equal_files_have_no_error(file: Path) -> None:
    found = evaluate_files(
        pair(file, file), LabelledData([Batch((inputs(),))]), seconds=0
    ).accuracy.models[1]
    assert ([each.value for each in found.yardsticks], found.sqnr_db) == ([1.0], None)


def test_a_file_that_grew_is_warned_of() -> None:
    metric = Metric("top-1", True, True, "built in", (0.75, 0.5), (0.0, 0.25), (None, None))
    spreads = (Spread(1.5, 1.5, 1.5), Spread(0.5, 0.5, 0.5))
    ratios = (Ratio(1, 1, 1, 1, 1), Ratio(3, 3, 3, 3, 3))
    outcomes = (ModelAccuracy(ALL, None, ()), ModelAccuracy(Interval(0.5, 0.4, 0.6), 31.25, ()))
    accuracy = Accuracy(24, (metric,), outcomes, "classes", 0, ("look out",))
    own = ModelFacts("int8", "int8.onnx", "", 4301, 1.0, 2_000, 2, 2, unknown_operators=2)
    result = Evaluation(
        models=(ModelFacts("float", "float.onnx", "", 2048, 0.0, 2_000, 2, 0), own),
        machine=this_machine(),
        accuracy=accuracy,
        latency=(Timing(8, 1, 9, 1.0, spreads, ratios),),
    )
    assert "  size       4.20 KiB, 2.10 times the float file's 2.00 KiB" in str(result)
    warning = "warning: the file grew: 4.20 KiB, 2.10 times the float file's 2.00 KiB"
    assert str(result).splitlines()[-2:] == [warning, "warning: look out"]
    known = "100 % of 2 k MACs, 2 of 2 operators, and 2 operators whose work is not known"
    assert known in str(result)
    smaller = replace(result, models=(result.models[0], replace(own, size_bytes=2049)))
    assert "grew" not in str(smaller)
    equal = replace(accuracy, models=(outcomes[0], ModelAccuracy(None, None, ())))
    rows = dict(replace(result, accuracy=equal).summary().rows)
    assert rows["SQNR"] == "no error (24 samples)"
    assert "agreement" not in rows


def test_a_float_file_is_marked(file: Path) -> None:
    path = plain(file, "linear")
    result = evaluate_files(pair(path, path), LabelledData([Batch((inputs(),))]), seconds=0)
    assert "float.onnx is not quantized" in result.accuracy.warnings[0]
    assert result.models[1].integer_mac_share == 0
    assert str(result).splitlines()[-1].startswith("warning: float.onnx is not quantized")


def test_metrics_of_the_user_come_first(file: Path) -> None:
    def largest(model):
        return float(model(inputs()).max())

    data = LabelledData([Batch((inputs(),))], [0] * 24, largest, lower_is_better=["largest"])
    result = evaluate_files(pair(plain(file, "linear"), file), data, seconds=0)
    assert [m.name for m in result.accuracy.metrics] == ["largest", "top-1"]
    assert not result.accuracy.metrics[0].higher_is_better


def test_a_language_model_has_perplexity_and_the_time_of_a_prompt(tmp_path: Path) -> None:
    files = [write_tagger(tmp_path / f"{n}.onnx", noise=n * 0.3) for n in range(2)]
    result = evaluate_files(pair(*files), LabelledData(texts()), seconds=0)
    figures = result.accuracy
    assert [m.name for m in figures.metrics] == ["perplexity"]
    assert (figures.scores, figures.tokens) == ("next tokens", 5 + 8 + 8 + 5 + 8)
    assert [(t.phase, t.tokens, t.cached) for t in result.latency] == [("prompt", 9, 0)]
    assert "same next token on" in str(result)
    assert from_json(Evaluation, json.loads(json.dumps(result.to_json()))) == result
