"""verify, evaluate, compare and report: one call each, for whatever a person has at hand."""

import json
import re

import numpy as np
import onnx
import pytest
import torch

import qtool
from qtool.backends.onnx import storage
from qtool.core.errors import VerificationError
from tests.evaluation.spoiled import Chain, captured, chain, images

DATA = list(images(32).split(16))
QUICK = qtool.ReportOptions(batch_sizes=(4,), seconds=0.01, samples=16)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("examine") / "int8.onnx"
    chain().export(path)
    return path


@pytest.fixture(scope="module")
def known(file):
    return qtool.evaluate(file, captured(), DATA, np.zeros(32, np.int64), seconds=0)


def module():
    torch.manual_seed(0)
    return Chain().eval()


# --- verify --------------------------------------------------------------------------------------


def test_verify_on_random_inputs_and_on_data(file):
    drawn = qtool.verify(file, samples=20, batch_size=8)
    assert (drawn.samples, drawn.exact) == (20, True)
    seen = []
    given = qtool.verify(
        str(file), DATA, progress=lambda items: (seen.append(i) or i for i in items)
    )
    assert (given.samples, given.exact, len(seen)) == (32, True, 2)


# --- evaluate ------------------------------------------------------------------------------------


def sqnr(result):
    return result.accuracy.models[1].sqnr_db


def test_evaluate_whatever_the_model_is(file, known):
    program = torch.export.export(
        module(), (DATA[0],), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    for model in (module(), program):
        found = qtool.evaluate(file, model, iter(DATA), np.zeros(32, np.int64), seconds=0)
        assert found.latency[0].batch == 1  # as quantize_to_file times
        own, other = (result.accuracy.models[1] for result in (found, known))
        assert (found.accuracy.samples, own.agreement) == (32, other.agreement)
        assert found.accuracy.metrics == known.accuracy.metrics
        assert own.sqnr_db == pytest.approx(other.sqnr_db, abs=1e-6)


def test_a_float_model_with_other_weights_is_refused(file, tmp_path):
    other = module()
    with torch.no_grad():
        next(other.parameters())[0] += 1e-3
    message = "int8.onnx was made from a model with other weights .* with 'other_model'"
    with pytest.raises(VerificationError, match=message):
        qtool.evaluate(file, other, DATA, seconds=0)
    with pytest.raises(VerificationError, match=message):
        qtool.report(file, DATA, tmp_path / "r", QUICK, model=other)
    assert qtool.evaluate(file, other, DATA, seconds=0, other_model=True).accuracy.samples == 32


def test_an_onnx_file_of_the_float_model_is_no_other_model(file, tmp_path):
    captured().export_float(tmp_path / "float.onnx")
    model = qtool.load_model(tmp_path / "float.onnx")
    assert sqnr(qtool.evaluate(file, model, DATA, seconds=0)) > 20


def test_evaluate_takes_batches_with_labels_and_by_name(file, known):
    pairs = [(x, torch.zeros(len(x))) for x in DATA]
    named = [{"x": x} for x in DATA]
    for data in (pairs, named):
        assert sqnr(qtool.evaluate(file, captured(), data, seconds=0)) == sqnr(known)


def test_inputs_outside_the_calibrated_range_are_named(file, known, tmp_path):
    def warned(warnings):
        return [text for text in warnings if "outside the range that" in text]

    far = [100 * x for x in DATA]
    (said,) = warned(qtool.evaluate(file, captured(), far, seconds=0).accuracy.warnings)
    assert re.match(
        r"\d\d(\.\d+)? % of the input values are outside the range that the quantized", said
    )
    report = qtool.report(file, far, tmp_path / "r", QUICK, model=captured())
    assert said in str(report)
    assert not warned(known.accuracy.warnings)


# --- compare and report --------------------------------------------------------------------------


def test_compare_with_a_reference_that_stands_outside(file, tmp_path):
    plain = captured().export_float(tmp_path / "float.onnx")
    found = qtool.compare([file], DATA, options=QUICK, reference=plain)
    assert [m.name for m in found.models] == ["float", "int8"]
    assert found.title == "compared"
    assert list(tmp_path.iterdir()) == [plain], "nothing is written without a folder"
    again = qtool.compare([file, plain], DATA, tmp_path / "r", QUICK, reference=plain)
    assert [m.name for m in again.models] == ["float", "int8"]
    assert json.loads((tmp_path / "r" / "report.json").read_text())["title"] == "r"


def test_a_report_with_data_that_is_read_once(file, tmp_path):
    found = qtool.report(file, iter(DATA), tmp_path / "f", QUICK, model=module())
    assert found.layers is not None, found.layers_note
    assert found.title == "int8.onnx"
    assert found.models[1].origin.startswith("the file int8.onnx")
    assert found.accuracy.samples == 32


@pytest.mark.parametrize(
    "how", [{"mode": "dynamic"}, {"recipe": [{"select": "head", "as": "float"}]}]
)
def test_a_report_needs_not_be_told_how_the_file_was_made(how, tmp_path):
    file = tmp_path / "int8.onnx"
    qtool.quantize(captured(), DATA, accuracy="fast", **how).export(file)
    found = qtool.report(file, DATA, tmp_path / "r", QUICK, model=captured())
    assert found.layers is not None, found.layers_note


def test_the_reference_of_a_file_may_be_a_file(file, tmp_path):
    plain = captured().export_float(tmp_path / "float.onnx")
    found = qtool.report(file, DATA, tmp_path / "r", QUICK, model=plain)
    assert found.models[0].origin == "the file float.onnx"
    assert "a float model of torch as 'model', not a file" in found.layers_note


# --- weights in a second file --------------------------------------------------------------------


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """A float and an int8 file, the weights of each in another one."""
    monkeypatch.setattr(storage, "SMALL", 100)
    plain = tmp_path / "float.onnx"
    storage.save(onnx.load(captured().export_float(tmp_path / "whole.onnx")), plain, external=True)
    chain().export(tmp_path / "int8.onnx", external_data=True)
    assert [len(storage.model_files(tmp_path / f"{n}.onnx")) for n in ("float", "int8")] == [2, 2]
    return plain, tmp_path / "int8.onnx"


def test_evaluate_and_bench_read_both_files(apart, known):
    plain, int8 = apart
    found = qtool.evaluate(int8, captured(), DATA, seconds=0)
    assert sqnr(found) == sqnr(known)
    assert found.models[1].size_bytes == sum(f.stat().st_size for f in storage.model_files(int8))
    timed = qtool.bench([plain, int8], batch_sizes=(2,), seconds=0.01)
    assert len(timed.timings) == 1


# --- the public class ----------------------------------------------------------------------------


def test_what_people_get_has_a_speed(tmp_path, monkeypatch):
    from qtool.api import quantized_model as place

    quantized = qtool.quantize(captured(), DATA, accuracy="fast")
    assert type(quantized) is qtool.QuantizedModel
    asked = []
    monkeypatch.setattr(place, "measure_speedup", lambda *a, **k: asked.append((a, k)))
    quantized.speed(tmp_path / "m.onnx", seconds=0.5)
    assert asked == [((quantized, tmp_path / "m.onnx"), {"seconds": 0.5})]
