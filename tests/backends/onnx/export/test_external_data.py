"""Models whose weights stand in a second file: exported, and looked at by everything that reads."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import qtool
from qtool.backends.onnx import storage
from qtool.backends.onnx.export import write_float
from qtool.backends.onnx.storage import model_files
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.evaluation.restored_model import restore
from qtool.frontends.onnx.onnx_file import capture_onnx, load_onnx
from tests.backends.onnx.export.networks import network, quantized, samples

NAME = "residual"


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LIMIT", 4000)
    monkeypatch.setattr(storage, "SMALL", 100)


def arrays(batch: int = 4) -> list[np.ndarray]:
    return [t.numpy() for t in samples(NAME, batch)]


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_large_model_is_exported_and_verified(tmp_path: Path, form: str) -> None:
    path = tmp_path / "m.onnx"
    result = quantized(NAME).export(path, format=form)
    assert result.passed
    assert result.coverage.share == 1
    assert [f.exists() for f in model_files(path)] == [True, True]
    whole = tmp_path / "whole.onnx"
    onnx.save(quantized(NAME).to_onnx(form), whole)
    assert np.array_equal(run(session(path), arrays())[0], run(session(whole), arrays())[0])


def test_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(storage, "SMALL", 100)
    quantized(NAME).export(tmp_path / "one.onnx", verify=False)
    quantized(NAME).export(tmp_path / "two.onnx", verify=False, external_data=True)
    assert len(model_files(tmp_path / "one.onnx")) == 1
    assert len(model_files(tmp_path / "two.onnx")) == 2


def test_a_file_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qtool.Verification, "passed", property(lambda self: False))
    with pytest.raises(VerificationError, match="was not written"):
        quantized(NAME).export(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_reads_files_reads_both(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    quantized(NAME).export(path, verify=False)
    assert compare_codes(path, [arrays()]).exact
    assert audit(path).share == 1
    assert lower(path).float_nodes == 0
    again = quantized(NAME).verify(path)
    assert again.passed
    captured = qtool.capture_model(network(NAME), samples(NAME, 4))
    batch = captured.graph.bind(Batch(samples(NAME, 4)))
    back = restore(path, captured, batch)
    assert torch.equal(back(*samples(NAME, 4)), quantized(NAME)(*samples(NAME, 4)))


def test_float_files_go_out_and_come_in(tmp_path: Path) -> None:
    path = write_float(quantized(NAME).reference, tmp_path / "float.onnx")
    assert len(model_files(path)) == 2
    graph = capture_onnx(load_onnx(path), Batch(samples(NAME, 4)))
    with torch.no_grad():
        found = graph.module(*samples(NAME, 4))
    np.testing.assert_allclose(found.numpy(), run(session(path), arrays())[0], rtol=1e-4, atol=1e-5)
