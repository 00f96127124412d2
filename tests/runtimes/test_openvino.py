"""OpenVINO as a runtime: what it is asked, what is said of it, what a conversion shows in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qtool import quantized as module
from qtool.errors import VerificationError
from qtool.runtimes import RUNTIMES, runtime
from qtool.runtimes.openvino import OPENVINO
from qtool.targets import TARGETS
from tests.targets.converted import converted, samples

installed = pytest.mark.skipif(
    not OPENVINO.installed, reason='OpenVINO is not installed: pip install "qtool[openvino]"'
)


def test_every_target_names_a_runtime_or_none() -> None:
    named = {t.runtime for t in TARGETS.values()}
    assert named == {None, *RUNTIMES}
    assert runtime(None) is None


@installed
def test_export_verifies_in_openvino(tmp_path: Path) -> None:
    result = converted("digits", "openvino").export(tmp_path / "model.onnx")
    assert result is not None
    assert result.passed
    assert result.parity.optimised is not None
    assert result.parity.runtime == f"openvino {OPENVINO.version()}"
    assert f"; in openvino {OPENVINO.version()} worst" in str(result)
    assert result.missing == ""


@installed
def test_what_openvino_computes_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = converted("digits", "openvino")

    def wrong(path: str | Path) -> object:
        right = OPENVINO.open(path)
        return lambda arrays: [10 * a + 100 for a in right(arrays)]

    monkeypatch.setattr(module, "runtime", lambda _: replace(OPENVINO, open=wrong))
    with pytest.raises(VerificationError, match="in openvino"):
        model.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_missing_runtime_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "runtime", lambda _: replace(OPENVINO, version=lambda: None))
    result = converted("digits", "openvino").export(tmp_path / "model.onnx")
    assert result is not None
    assert result.passed
    assert result.parity.optimised is None
    assert result.missing.startswith("OpenVINO is not installed: ")
    assert "pip install openvino" in str(result)


@installed
def test_inputs_and_outputs_go_by_position(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    converted("digits", "openvino").export(file, verify=False)
    x = samples("digits")[:3].numpy()
    (found,) = OPENVINO.open(file)([x])
    assert found.shape[0] == 3
    assert found.dtype == np.float32


@installed
def test_refusals_are_in_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(VerificationError, match=r"broken\.onnx: OpenVINO does not load it"):
        OPENVINO.open(broken)
