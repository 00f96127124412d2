"""The outcomes of a gate on files of a product, made by another tool than qtool."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.evaluation.gate.result import GateCheck, GateResult, Outcome
from qtool.evaluation.measure.output_pass import Reference, measure_arrays
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
    "a function of NaN": (
        *(WEIGHT, X, {"metric": lambda o, y: np.nan}),
        *("not comparable", "returned nan on 600 samples"),
    ),
    "labels of text": (
        *(WEIGHT, X, {"metric": "f1", "labels": [f"class {i}" for i in LABELS]}),
        *("not comparable", "the labels are names, such as 'class"),
    ),
    "dates as labels": (
        *(WEIGHT, X, {"metric": "f1", "labels": np.full(600, "2026-01-01", "M8[D]")}),
        *("not comparable", "the labels are datetime64[D]; give numbers"),
    ),
    "NaN as a label": (
        *(WEIGHT, X, {"metric": "f1", "labels": np.where(LABELS == 1, np.nan, LABELS)}),
        *("not comparable", "are NaN or Inf, the first that of sample"),
    ),
    "ragged labels": (
        *(WEIGHT, X, {"metric": "top-1", "labels": [[1, 2], [3]]}),
        *("not comparable", "rows of different lengths"),
    ),
    "no labels at all": (
        *(WEIGHT, X, {"metric": "mae", "labels": []}),
        *("not comparable", "the labels have shape [0]"),
    ),
    "one label": (
        *(WEIGHT, X, {"metric": "spearman", "labels": 3}),
        *("not comparable", "the labels have shape []"),
    ),
    "the same for all": (0 * WEIGHT, X, {}, "regression", "'y' is the same for all 600 samples"),
    "f1": (small(1e-4), X, {"metric": "f1"}, "accepted", "F1"),
    "mean absolute error": (
        *(small(1e-4), X, {"metric": "mae", "labels": NUMBERS, "max_drop": None}),
        *("accepted", "MAE   0.7"),
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
    suite = ET.fromstring(result.junit())
    assert [case.findtext("system-out") for case in suite.iter("testcase")] == [
        check.text for check in result.checks
    ]
    bad = [*suite.iter("failure"), *suite.iter("error")]
    assert bool(bad) == (outcome != "accepted")
    assert outcome in result.markdown()


@pytest.mark.parametrize(
    ("size", "rows", "text"),
    [
        (1, 32, "takes 1 sample at a time, and the batches have 32; give batches of that size"),
        (256, 256, "takes 256 samples at a time, and batch 2 has 88; give a multiple of 256"),
    ],
)
def test_a_fixed_batch_is_no_regression(size: int, rows: int, text: str, tmp_path: Path) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    file = linear_file(tmp_path / "other.onnx", WEIGHT, size=size)
    result = qtool.gate(file, real, np.split(X, range(rows, len(X), rows)))
    assert result.exit_code == 4
    assert text in str(result)


def test_an_output_behind_the_first(tmp_path: Path) -> None:
    """The agreement is that of the first output; another one that is of no use is a regression."""

    def heads(path: Path, weight: np.ndarray) -> Path:
        model = onnx.load(linear_file(path, WEIGHT))
        model.graph.node.append(helper.make_node("MatMul", ["x", "v"], ["z"]))
        model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), "v"))
        model.graph.output.append(helper.make_tensor_value_info("z", 1, ["batch", 7]))
        onnx.save(model, path)
        return path

    weight = GENERATOR.normal(size=(16, 7))
    real = heads(tmp_path / "float.onnx", weight)
    near = heads(tmp_path / "near.onnx", weight + 1e-3)
    result = qtool.gate(near, real, [X], max_drop=0.01)
    assert result.exit_code == 0
    assert result.metric is not None
    assert result.metric.output == "y"
    assert "z: R2 0.9999" in str(result)
    rolled = heads(tmp_path / "rolled.onnx", np.roll(weight, 1, 1))
    result = qtool.gate(rolled, real, [X], max_drop=0.01)
    assert (result.exit_code, result.metric) == (1, None)
    assert "z: R2 -" in str(result)
    by_labels = qtool.gate(rolled, real, [X], LABELS, metric="top-1", max_drop=0.01)
    assert by_labels.exit_code == 0  # the user says what counts


def test_codes_in_place_of_numbers(tmp_path: Path) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    model = onnx.load(real)
    model.graph.node[0].output[0] = "sum"
    model.graph.node.append(helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.INT8))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    onnx.save(model, tmp_path / "codes.onnx")
    result = qtool.gate(tmp_path / "codes.onnx", real, [X])
    assert result.exit_code == 4
    assert "output 'y' of codes.onnx is int8, that of float.onnx float32" in str(result)
    with pytest.raises(qtool.DataError, match="give a file with the output dequantized"):
        measure_arrays(Reference(real), [tmp_path / "codes.onnx"], [[X]])


def test_an_accepted_result_says_on_what_it_was_decided(tmp_path: Path) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    runs = [
        qtool.gate(real, real, np.split(X, range(n, len(X), n)), LABELS, metric="top-1").run
        for n in (32, 100)
    ]
    assert runs[0].data_sha256 == runs[1].data_sha256  # whatever batches they come in
    other = qtool.gate(real, real, [X], LABELS[::-1], metric="top-1").run
    assert other is None or other.labels_sha256 != runs[0].labels_sha256
    suite = ET.fromstring(qtool.gate(real, real, [X]).junit())
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["data_sha256"] == runs[0].data_sha256
    assert {"cpu", "runtime", "drop_high", "quantized"} <= set(properties)
    assert float(suite.get("time", "")) > 0


def test_names_stay_in_their_line_and_cell() -> None:
    name = "x\n::error::|`"
    wild = GateResult("a.onnx", "b.onnx", (GateCheck("y", Outcome.REGRESSION, name),))
    assert not any(line.strip().startswith("::") for line in str(wild).splitlines())
    assert wild.markdown().splitlines()[-1] == (
        r"| y | regression | x\n&#58;&#58;error&#58;&#58;&#124;&#96; |"
    )


def test_a_quantized_reference_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = onnx.load(linear_file(tmp_path / "float.onnx", WEIGHT))
    codes = ["codes", "scale", "zero"]
    model.graph.initializer.extend(
        numpy_helper.from_array(v, n)
        for n, v in zip(codes[1:], (np.float32(0.05), np.int8(0)), strict=True)
    )
    model.graph.node[0].input[0] = "rounded"
    for i, (op, first, out) in enumerate(
        [("QuantizeLinear", "x", "codes"), ("DequantizeLinear", "codes", "rounded")]
    ):
        model.graph.node.insert(i, helper.make_node(op, [first, *codes[1:]], [out]))
    onnx.save(model, tmp_path / "int8.onnx")
    qtool.gate(tmp_path / "int8.onnx", tmp_path / "int8.onnx", [X])
    assert "int8.onnx is quantized itself" in caplog.text
    assert "int8.onnx is not quantized" not in caplog.text
    qtool.gate(tmp_path / "float.onnx", tmp_path / "float.onnx", [X])
    assert "float.onnx is not quantized" in caplog.text


def test_a_limit_that_every_file_meets_is_refused_before_files_run(tmp_path: Path) -> None:
    real = linear_file(tmp_path / "float.onnx", WEIGHT)
    never = iter(lambda: pytest.fail("the data was read"), None)
    with pytest.raises(qtool.OptionError, match="allows 500 points"):
        qtool.gate(real, real, never, LABELS, metric="top-1", max_drop=5)


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


def test_one_answer_of_the_file_alone_is_said(tmp_path: Path) -> None:
    data = np.concatenate([np.abs(X), [[9.0, *[0.0] * 15]]]).astype(np.float32)
    rare = np.stack([X[0] * 0 + 1, np.eye(16)[0] * 1.5], 1).astype(np.float32)
    real = linear_file(tmp_path / "float.onnx", rare)
    file = linear_file(tmp_path / "other.onnx", rare * np.float32([1.0, 0.5]))
    labels = np.zeros(len(data), int)
    result = qtool.gate(file, real, [data], labels, max_drop=0.5)
    assert result.exit_code == 0
    assert "it answers class 0 on all of them, the float file another on 1 sample" in str(result)
