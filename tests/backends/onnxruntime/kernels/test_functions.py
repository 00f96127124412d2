"""The float functions against the runtime's own, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto

from qtool.backends.kernels.fma import fma32
from qtool.backends.onnxruntime.kernels import functions
from tests.backends.kernels.ort_session import MS, Model
from tests.backends.onnxruntime.kernels.oracle import PROFILE

MADD = (
    functions.multiply_then_add if PROFILE in ("onnxruntime-sse41", "onnxruntime-wasm") else fma32
)

CASES = {
    "Sigmoid": (functions.logistic, {}, "", 17),
    "Tanh": (functions.tanh, {}, "", 17),
    "Erf": (functions.erf, {}, "", 17),
    "Gelu": (functions.gelu, {}, "", 20),
    "QuickGelu": (functions.silu, {"alpha": 1.0}, MS, 17),
}


@pytest.mark.parametrize("spread", [0.3, 2.0, 9.0])
@pytest.mark.parametrize("op", CASES)
def test_equals_the_runtime(op, spread):
    function, attrs, domain, opset = CASES[op]
    x = torch.randn(1 << 15) * spread
    m = Model(opset)
    want, _ = m.run(m.node(op, [m.feed(x.numpy())], domain, **attrs), TensorProto.FLOAT)
    assert np.array_equal(function(x, MADD).numpy(), want)


def test_libm_would_be_seen():
    x = torch.randn(1 << 15)
    m = Model()
    want, _ = m.run(m.node("Sigmoid", [m.feed(x.numpy())]), TensorProto.FLOAT)
    assert not np.array_equal(x.double().sigmoid().float().numpy(), want)
