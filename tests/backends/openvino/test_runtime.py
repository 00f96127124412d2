"""OpenVINO as a runtime: what it is asked, what is said of it, what a conversion shows in it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qtool.backends import runtimes as module
from qtool.backends.onnx.executed_coverage import executed_coverage
from qtool.backends.openvino.runtime import OPENVINO
from qtool.backends.runtime import Arrays
from qtool.core.errors import VerificationError
from tests.planning.targets.converted import converted

installed = pytest.mark.skipif(
    not OPENVINO.installed, reason="OpenVINO is not installed: install the package openvino"
)


@installed
def test_export_verifies_in_openvino(tmp_path: Path) -> None:
    result = converted("digits", "openvino").export(tmp_path / "model.onnx")
    assert result.passed
    assert result.parity.optimised is not None
    assert result.parity.runtime == f"openvino {OPENVINO.version()}"
    assert f"quantization in openvino {OPENVINO.version()} (16 samples): max " in result.details()
    assert result.missing_runtime == ""
    assert f"as written and in openvino {OPENVINO.version()}, against the plan" in str(result)


@installed
def test_what_openvino_computes_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = converted("digits", "openvino")

    def wrong(path: str | Path, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        return [10 * a + 100 for a in OPENVINO.run(path, arrays)]

    monkeypatch.setattr(module, "runtime", lambda _: replace(OPENVINO, run=wrong))
    with pytest.raises(VerificationError, match="in openvino"):
        model.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_missing_runtime_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "runtime", lambda _: replace(OPENVINO, version=lambda: None))
    result = converted("digits", "openvino").export(tmp_path / "model.onnx")
    assert result.passed
    assert result.parity.optimised is None
    assert result.missing_runtime.startswith("OpenVINO is not installed: ")
    assert "pip install openvino" in str(result)


@installed
def test_refusals_are_in_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(VerificationError, match=r"broken\.onnx: OpenVINO does not load it"):
        OPENVINO.run(broken, [])


@installed
def test_it_tells_its_kernels(tmp_path: Path) -> None:
    converted("digits", "openvino").export(tmp_path / "model.onnx", verify=False)
    assert OPENVINO.executed_kernels is not None
    kernels = {
        name: k for k in OPENVINO.executed_kernels(tmp_path / "model.onnx") for name in k.nodes
    }
    assert kernels["block2.conv2.0"] is kernels["block2.add"]  # taken into one
    assert kernels["block2.conv2.0"].kind == "Convolution u8"
    assert kernels["block2.conv2.0"].integer
    assert kernels["head"].integer  # known as head/WithoutBiases/DequantizationMultiply
    assert not any("codes" in name for name in kernels)  # constants are no kernels


@installed
@pytest.mark.parametrize("name", ["digits", "activations"])
def test_coverage_is_what_it_runs(name: str, tmp_path: Path) -> None:
    model = converted(name, "openvino")
    found = model.export(tmp_path / "model.onnx").coverage
    assert found.runtime == str(OPENVINO)
    assert found.macs == sum(d.macs for d in model.plan.nodes)
    assert found.share == 1
    assert {r.kernel for r in found.rows if r.macs} <= {"Convolution u8", "FullyConnected u8"}
    assert model.coverage == found


@installed
def test_what_it_runs_in_float_is_said(tmp_path: Path) -> None:
    """A plan that says more than is in the file: no quantization in front of a layer."""
    model = converted("digits", "openvino")
    file = model.to_onnx()
    rounded = {n.output[0]: n.input[0] for n in file.graph.node if n.op_type == "QuantizeLinear"}
    for node in file.graph.node:
        if node.name == "block1.conv2.0":
            source = next(n for n in file.graph.node if n.output[0] == node.input[0])
            node.input[0] = rounded.get(source.input[0], source.input[0])
    onnx.save(file, tmp_path / "model.onnx")
    found = executed_coverage(tmp_path / "model.onnx", model.plan, OPENVINO)
    rows = {r.name: r for r in found.float_rows}
    assert rows["block1.conv2.0"].reason == "OpenVINO runs it in float"
    assert rows["block1.conv2.0"].kernel == "Convolution f32"
    assert 0 < found.share < 1
