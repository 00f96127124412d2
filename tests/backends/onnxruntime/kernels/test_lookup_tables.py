"""Unary operators on all 256 codes, and PRelu, against real sessions."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import MS, Model, params, qdq
from tests.backends.onnxruntime.kernels.oracle import (
    BIND,
    KINDS,
    Draw,
    assert_same,
    every_code,
    tensor,
)

FLOAT = ("DequantizeLinear", "{}", "QuantizeLinear")
# key: operator, attributes, bind arguments, opset, domain, operators run
UNARY = {
    "sigmoid": ("Sigmoid", {}, {}, 17, "", ["QLinearSigmoid"]),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.1}, {"alpha": 0.1}, 17, "", ["QLinearLeakyRelu"]),
    "tanh": ("Tanh", {}, {}, 17, "", None),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 0.3}, {"alpha": 0.3}, 17, "", None),
    "hard_swish": (
        *("HardSwish", {}, {}, 17, ""),
        ["DequantizeLinear", "HardSigmoid", "Mul", "QuantizeLinear"],
    ),
    "relu": ("Relu", {}, {}, 17, "", None),
    "gelu": ("Gelu", {}, {}, 20, "", None),
    "silu": ("QuickGelu", {"alpha": 1.0}, {}, 17, MS, None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("key", UNARY)
def test_every_code(key, qtype, kind):
    operator, attrs, kwargs, opset, domain, ran = UNARY[key]
    codes = every_code(qtype)
    for seed in range(6):
        d = Draw(seed, kind)
        x, out = d.params(qtype), d.params(qtype, 0.7 if key == "relu" else None)
        runtime = qdq(operator, [(codes, x)], out, opset=opset, domain=domain, **attrs)
        expected = ran or ["DequantizeLinear", operator, "QuantizeLinear"]
        if key == "relu" and int(out.zero_point) == qtype.qmin:
            expected = ["DequantizeLinear", "QuantizeLinear"]
        assert_same(BIND(key, x, out, **kwargs)(tensor(codes)), runtime, *expected)


@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-1.0, 1.0)])
def test_clip(qtype, low, high):
    d = Draw(1)
    codes, x, out = every_code(qtype), d.params(qtype, 0.1), d.params(qtype, 0.06)
    runtime = qdq("Clip", [(codes, x)], out, raw=[np.float32(low), np.float32(high)])
    got = BIND("clip", x, out, low=low, high=high)(tensor(codes))
    assert_same(got, runtime, "DequantizeLinear", "Clip", "QuantizeLinear")


def test_silu_as_sigmoid_and_product():
    d, codes = Draw(2), every_code(UINT8)
    for _ in range(6):
        x, out, m = d.params(UINT8), d.params(UINT8), Model()
        value = m.dq(m.feed(codes), x)
        product = m.node("Mul", [value, m.node("Sigmoid", [value])])
        want, ran = m.run(m.q(product, out), out.qtype.onnx_type)
        assert "Sigmoid" in ran
        assert np.array_equal(BIND("silu", x, out)(tensor(codes)).numpy(), want)


@pytest.mark.parametrize("shape", [(1,), (5, 1, 1)])
def test_prelu(shape):
    d = Draw(3, KINDS[1])
    codes, slopes = d.codes(UINT8, 2, 5, 9, 7), d.codes(INT8, *shape)
    x, slope, out = d.params(UINT8), params(INT8, 0.0078125), d.params(UINT8)
    runtime = qdq("PRelu", [(codes, x)], out, consts=[(slopes, slope)])
    got = BIND("prelu", x, slope, out, tensor(slopes))(tensor(codes))
    assert_same(got, runtime, "DequantizeLinear", "DequantizeLinear", "PRelu", "QuantizeLinear")
