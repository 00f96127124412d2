"""Verification of exported files: correct ones pass, others do not or are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.verification.parity import TOLERANCE
from tests.backends.onnx.export.networks import NETWORKS, exported, quantized, samples
from tests.conversion.corrupt import corrupt


@pytest.mark.parametrize("name", ["residual", "linear_3d", "outputs", "conv_transpose"])
def test_an_export_verifies(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported(name))
    found = quantized(name).verify(path)
    assert found.passed
    assert found.parity.samples == 16
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["coverage"]["macs"] == NETWORKS[name].macs
    assert told["parity"]["passed"] is True
    assert "MACs run in integer kernels" in found.details()


def test_verification_without_a_path_makes_a_file_of_its_own() -> None:
    found = quantized("linear").verify()
    assert found.passed
    assert quantized("linear").coverage == found.coverage


def test_verification_takes_a_batch_of_the_users() -> None:
    found = quantized("linear").verify(sample=Batch(samples("linear", 5, seed=3)))
    assert (found.passed, found.parity.samples) == (True, 5)


def test_a_file_of_other_weights_does_not_pass(tmp_path: Path) -> None:
    onnx.save(corrupt("2.weight.codes", np.negative), tmp_path / "wrong.onnx")
    found = quantized("linear").verify(tmp_path / "wrong.onnx")
    assert not found.passed
    assert found.parity.optimised.mean > TOLERANCE


def test_a_file_of_wrong_structure_is_refused(tmp_path: Path) -> None:
    onnx.save(corrupt("0.bias.scale", lambda s: s * np.float32(1.5)), tmp_path / "wrong.onnx")
    with pytest.raises(VerificationError, match="0: its bias scale"):
        quantized("linear").verify(tmp_path / "wrong.onnx")
