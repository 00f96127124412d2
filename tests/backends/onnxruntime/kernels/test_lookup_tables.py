"""Unary operators on all 256 codes against real sessions."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import MS, Model, element_type, qdq
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
    "hard_swish": (
        *("HardSwish", {}, {}, 17, ""),
        ["DequantizeLinear", "HardSigmoid", "Mul", "QuantizeLinear"],
    ),
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
        x, out = d.params(qtype), d.params(qtype)
        runtime = qdq(operator, [(codes, x)], out, opset=opset, domain=domain, **attrs)
        expected = ran or ["DequantizeLinear", operator, "QuantizeLinear"]
        assert_same(BIND(key, x, out, **kwargs)(tensor(codes)), runtime, *expected)


def test_silu_as_sigmoid_and_product():
    d, codes = Draw(2), every_code(UINT8)
    for _ in range(6):
        x, out, m = d.params(UINT8), d.params(UINT8), Model()
        value = m.dq(m.feed(codes), x)
        product = m.node("Mul", [value, m.node("Sigmoid", [value])])
        want, ran = m.run(m.q(product, out), element_type(out.qtype))
        assert "Sigmoid" in ran
        assert np.array_equal(BIND("silu", x, out)(tensor(codes)).numpy(), want)
