"""The openvino target in OpenVINO itself, where that is installed (extra `openvino`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qtool.api.conversion import quantize
from qtool.planning.plan import Kind
from tests.planning.targets.converted import converted, network, samples, step, written

ov: Any = pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: install the package openvino"
)

CODES, LARGEST = 0.5, 2.5
"""Accepted distance from fake quantization, in codes of the output: root of the mean square, and
largest. OpenVINO accumulates in int32 and rescales, adds biases and rounds in float32, in another
order of operations: a value next to a tie may get the neighbouring code, and some of them meet in
one output of these networks, as independent noise (0.41 in `digits`) whose largest of 640 values
lies about five times as far."""

INTEGER = ("Convolution", "FullyConnected", "MatMul", "Concatenation", "Pooling")


def compiled(name: str) -> Any:
    core = ov.Core()
    model = core.read_model(written(name, "openvino").SerializeToString())
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(model, "CPU", settings)


@pytest.mark.parametrize("name", ["digits", "residual_concat", "depthwise"])
def test_openvino_computes_what_fake_quantization_does(name: str) -> None:
    model, x = converted(name, "openvino"), samples(name)[:64]
    found = compiled(name)(x.numpy())[0]
    with torch.no_grad():
        fake, real = model(x).numpy(), network(name)(x).numpy()
    code = step(model, fake)
    assert np.ptp(fake) > 50 * code  # there is something to compare
    assert np.sqrt(np.square(found - fake).mean()) <= CODES * code
    assert np.abs(found - fake).max() <= LARGEST * code
    assert np.abs(found - real).max() <= 8 * code


@pytest.mark.parametrize("name", ["digits", "residual_concat", "depthwise"])
def test_every_layer_runs_in_integers(name: str) -> None:
    rows = [node.get_rt_info() for node in compiled(name).get_runtime_model().get_ops()]
    text = [{k: str(r[k].astype(str)) for k in ("layerType", "primitiveType")} for r in rows]
    ours = [t for t in text if t["layerType"] in INTEGER]
    layers = sum(p.kind is Kind.WEIGHT for p in converted(name, "openvino").plan)
    assert sum(t["layerType"] in INTEGER[:3] for t in ours) == layers
    if any("avx512" in t["primitiveType"] for t in text):  # which forms exist depends on the CPU
        assert all(t["primitiveType"].endswith("I8") for t in ours), ours


def test_the_comparison_sees_another_model() -> None:
    model, x = converted("depthwise", "openvino"), samples("depthwise")[:64]
    found = compiled("depthwise")(-x.numpy())[0]
    fake = model(x).detach().numpy()
    assert np.abs(found - fake).max() > CODES * step(model, fake)


@pytest.mark.parametrize("tokens", [16, 5])
def test_a_linear_layer_without_bias_on_tokens_is_right(tokens: int) -> None:
    """As many tokens as channels: without what holds it OpenVINO mixes them up and says nothing."""
    torch.manual_seed(0)
    model, x = nn.Linear(16, 16, bias=False).eval(), torch.randn(4, tokens, 16)
    assert quantize(model, [x], target="openvino").verify().passed
