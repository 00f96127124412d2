"""Files of trained weights, and their verification."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.core.data import Batch
from qtool.core.errors import VerificationError
from qtool.core.types import INT8_NARROW
from qtool.planning.plan import Kind
from qtool.verification.estimate import CALIBRATION
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


def test_a_file_of_wrong_structure_is_refused(tmp_path: Path) -> None:
    onnx.save(corrupt("0.bias.scale", lambda s: s * np.float32(1.5)), tmp_path / "wrong.onnx")
    with pytest.raises(VerificationError, match="0: its bias scale"):
        quantized("linear").verify(tmp_path / "wrong.onnx")


DATA = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


def trained() -> tuple[nn.Module, qtool.QuantizedModel]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    quantized = qtool.quantize(model, DATA.split(32), accuracy="fast")
    optimizer = torch.optim.SGD(quantized.module.parameters(), lr=0.5)
    for batch in DATA.split(32):
        loss = (quantized(batch) - 3 * batch[:, :8]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, quantized


def sums(quantized: qtool.QuantizedModel) -> int:
    """The largest sum of two neighbouring codes of one sign."""
    weights = [quantized.parameters[p.name] for p in quantized.plan if p.kind is Kind.WEIGHT]
    assert {w.qtype for w in weights} == {INT8_NARROW}
    tensors = [p for p in quantized.module.parameters() if p.dim() == 2]
    codes = [w.quantize(t).int() for w, t in zip(weights, tensors, strict=True)]
    return max(int((c[:, ::2] + c[:, 1::2]).abs().max()) for c in codes)


def test_what_was_trained_is_exported_within_the_limit_of_pairs(tmp_path: Path) -> None:
    model, quantized = trained()
    before = quantized(DATA)
    assert sums(quantized) > 128
    result = quantized.export(tmp_path / "trained.onnx")
    assert result.passed
    assert result.fidelity.estimate.kind == CALIBRATION, "training may have used them"
    assert sums(quantized) <= 128
    with torch.no_grad():
        moved = (quantized(DATA) - before).square().mean()
        assert moved < 0.1 * (before - model(DATA)).square().mean()


def test_the_module_is_an_nn_module() -> None:
    _, quantized = trained()
    state = quantized.module.state_dict()
    _, other = trained()
    other.module.load_state_dict({k: v * 0 if v.dim() == 2 else v for k, v in state.items()})
    assert not torch.equal(other(DATA), quantized(DATA))
    other.module.load_state_dict(state)
    assert torch.equal(other(DATA), quantized(DATA))


def test_a_quantized_model_says_what_it_is() -> None:
    _, quantized = trained()
    assert repr(quantized) == (
        "<QuantizedModel: static for onnxruntime, integer: 100 % of 768 MACs, 2 of 2 operators>"
    )
    text = str(quantized)
    assert text.startswith("QuantizedModel  static, for onnxruntime\n  inputs    input: float32[")
    assert "recovery  none" in text
