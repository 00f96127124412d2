"""From a model to a report: the numbers are those of the runtime, a killed run goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import qtool
from qtool.backends.onnx.export import write_float
from qtool.core.errors import DataError
from qtool.evaluation.evaluate import evaluate_files
from qtool.evaluation.labelled_data import LabelledData
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import Report
from qtool.evaluation.subject import Subject
from tests.evaluation.onnx_files import linear_file
from tests.passes import small_decoder

QUICK = ReportOptions("digits", seconds=0.01, batch_sizes=(4,), samples=64)


@pytest.fixture(scope="module")
def captured(digits):
    from safetensors.torch import load_file

    from examples.digits.network import digits_net

    net = digits_net()
    net.load_state_dict(load_file(digits.weights), strict=True)
    return qtool.capture_model(net, torch.from_numpy(digits.calibration_images[:32]))


@pytest.fixture(scope="module")
def quantized(captured, digits):
    images = torch.from_numpy(digits.calibration_images[:128])
    return qtool.quantize(captured, images.split(32), accuracy="fast")


@pytest.fixture(scope="module")
def images(digits):
    return torch.from_numpy(digits.images).split(50)


@pytest.fixture(scope="module")
def made(quantized, images, digits, tmp_path_factory):
    """The folder of a report and its file, and the report."""
    folder = tmp_path_factory.mktemp("run") / "digits"
    folder.mkdir()
    quantized.export(folder / "model.int8.onnx")
    options = replace(QUICK, labels=digits.labels)
    return folder, reported(quantized, folder / "model.int8.onnx", images, folder / "page", options)


def reported(quantized, file, data, folder, options=QUICK):
    return qtool.report(file, data, folder, options, model=quantized.captured)


def test_folder_holds_the_report(made):
    folder, report = made
    folder = folder / "page"
    assert sorted(p.name for p in folder.iterdir()) == [
        "report.html",
        "report.json",
        "report.md",
    ]
    assert Report.from_json(json.loads((folder / "report.json").read_text())) == report
    assert sorted(p.name for p in folder.parent.iterdir()) == ["model.int8.onnx", "page"]


def test_numbers_are_those_of_evaluate(made, quantized, images, digits, tmp_path):
    folder, report = made
    plain = write_float(quantized.reference, tmp_path / "float.onnx")
    known = evaluate_files(
        [Subject("", plain, ""), Subject("", folder / "model.int8.onnx", "")],
        LabelledData(images, digits.labels),
        seconds=0.01,
    )
    outcome, own = report.accuracy.models[1], known.accuracy.models[1]
    assert report.accuracy.metrics == known.accuracy.metrics
    assert (outcome.agreement, outcome.sqnr_db) == (own.agreement, own.sqnr_db)
    for name in ("size_bytes", "macs", "integer_mac_share", "operators"):
        assert getattr(report.models[1], name) == getattr(known.models[1], name)
    assert report.models[0].size_bytes == known.models[0].size_bytes
    assert report.models[0].integer_mac_share == 0.0


def test_a_metric_that_fails_leaves_nothing(quantized, made, images, tmp_path):
    file = made[0] / "model.int8.onnx"

    def fails(model):
        raise RuntimeError("out of coffee")

    with pytest.raises(DataError, match=r"m:f failed on float\.onnx: RuntimeError: out of coffee"):
        reported(
            quantized, file, images, tmp_path / "r", replace(QUICK, function=fails, where="m:f")
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mode", "target", "rules"),
    [
        ("weight-only-int4", "onnxruntime", None),
        ("dynamic", "onnxruntime", None),
        ("static", "qnn", [{"op": "linear", "activations": "uint16"}]),
        ("static", "onnxruntime-arm", None),
    ],
)
def test_layers_of_every_scheme_are_measured(mode, target, rules, tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(48, 40), torch.nn.ReLU(), torch.nn.Linear(40, 10))
    data = [torch.randn(8, 48, generator=torch.Generator().manual_seed(1))]
    model = qtool.quantize(
        net.eval(), data, target=target, mode=mode, recipe=rules, accuracy="fast"
    )
    model.export(tmp_path / "int8.onnx")
    report = reported(model, tmp_path / "int8.onnx", data, tmp_path / "r")
    assert report.layers is not None, report.layers_note
    assert {"0", "2"} <= {layer.name for layer in report.layers.layers}
    facts = report.models[1]
    assert (facts.mode, facts.target, facts.runs_here) == (mode, target, target == "onnxruntime")
    if not facts.runs_here:
        assert facts.integer_mac_share == 1  # of the plan, not of the kernels of this machine
        assert dict(report.summary().rows)["integer"].endswith(f"(as planned for {target})")


@pytest.mark.matrix
def test_texts_with_cached_tokens_stay_batches_of_their_own(tmp_path):
    """Attention over a cache computes several new tokens of one text at a time."""
    _, decoder = small_decoder.captured()
    model = qtool.quantize(decoder, [small_decoder.inputs()], accuracy="fast")
    quick = replace(QUICK, batch_sizes=(1,))
    model.export(tmp_path / "int8.onnx")
    data = [small_decoder.inputs()] * 2
    report = reported(model, tmp_path / "int8.onnx", data, tmp_path / "r", quick)
    exactness = report.models[1].exactness
    assert exactness.passed
    assert exactness.samples == 2


def test_inputs_are_matched_by_position(tmp_path):
    files = [
        linear_file(tmp_path / "a.onnx", np.eye(3)),
        linear_file(tmp_path / "b.onnx", 1.5 * np.eye(3), name="z"),
    ]
    found = qtool.compare(files, [torch.ones(2, 3)], None, QUICK)
    assert found.accuracy.models[1].sqnr_db == pytest.approx(20 * np.log10(2), abs=0.01)


def test_batch_that_is_fixed(tmp_path):
    files = [linear_file(tmp_path / f"{n}.onnx", np.eye(3), size=2) for n in "ab"]
    asked = replace(QUICK, batch_sizes=(1, 2, 8))
    found = qtool.compare(files, [torch.zeros(2, 3)] * 3, None, asked)
    assert [t.batch for t in found.latency] == [2]


def test_outputs_with_a_metric_of_their_own_need_not_be_scores(quantized, made, images, tmp_path):
    file = made[0] / "model.int8.onnx"
    asked = replace(QUICK, function=lambda model: 1.0, where="m:f")
    found = reported(quantized, file, images, tmp_path / "r", asked)
    assert [o.agreement for o in found.accuracy.models] == [None, None]
    assert {s.predicted for s in found.accuracy.models[1].worst} == {None}
    assert "same best class" not in (tmp_path / "r" / "report.html").read_text()
    written = (tmp_path / "r" / "report.md").read_text()
    assert "top-1 agreement" not in written
    assert "|\n| output SQNR, dB |" in written  # the table goes on
