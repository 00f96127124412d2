"""A quantized model is trained further and exported: weights stay within the target's limits."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import qtool
from qtool.core.types import INT8_NARROW
from qtool.planning.plan import Kind

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
    assert result is not None
    assert result.passed
    assert result.fidelity.estimate is None, "training may have used them"
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
