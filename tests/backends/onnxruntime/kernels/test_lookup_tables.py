"""Float functions and tables of unary operators against real sessions."""

import numpy as np
import pytest
import torch
from onnx import TensorProto

from qtool.backends.kernels.fma import fma32
from qtool.backends.onnxruntime.kernels import functions, softmax
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import MS, Model, element_type, params, qdq
from tests.backends.onnxruntime.kernels.oracle import (
    BIND,
    KINDS,
    PROFILE,
    Draw,
    assert_same,
    every_code,
    tensor,
)

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


@pytest.mark.parametrize("length", [2, 10, 100, 700])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
def test_last_axis(qtype, kind, length):
    d = Draw(length, kind)
    codes = d.codes(qtype, 30, length)
    codes[:10] = np.clip(codes[:10], 60, 75)  # flat rows
    for out in (params(qtype, 1 / 256, qtype.qmin), d.params(qtype)):
        x = d.params(qtype)
        runtime = qdq("Softmax", [(codes, x)], out, axis=-1)
        assert_same(BIND("softmax", x, out)(tensor(codes)), runtime, "QLinearSoftmax")


def test_other_axis():
    d = Draw(1)
    codes, x = d.codes(UINT8, 3, 17, 5), d.params(UINT8, 0.1)
    out = params(UINT8, 1 / 256, 0)
    runtime = qdq("Softmax", [(codes, x)], out, axis=1)
    assert_same(BIND("softmax", x, out, axis=1)(tensor(codes)), runtime, "QLinearSoftmax")


def test_an_unbiased_scale_would_be_seen():
    """The runtime floors 1 / scale; taking 1 / scale itself gives other codes."""
    d = Draw(2)
    codes, x, out = d.codes(UINT8, 50, 4), params(UINT8, 0.02), params(UINT8, 0.0062, 0)
    runtime = qdq("Softmax", [(codes, x)], out, axis=-1)
    e = np.exp(codes * 0.02)
    fair = np.clip(np.rint(e / e.sum(-1, keepdims=True) / 0.0062), 0, 255).astype(np.uint8)
    with pytest.raises(AssertionError, match="differ"):
        assert_same(tensor(fair), runtime, "QLinearSoftmax")


def test_the_logarithm_is_that_of_a_float(monkeypatch):
    """A mutant: with the table's shift in double precision, one code of these is another."""
    d = Draw(2)
    codes, x, out = d.codes(UINT8, 500, 10), d.params(UINT8), params(UINT8, 1 / 256, 0)
    runtime = qdq("Softmax", [(codes, x)], out, axis=-1)
    assert_same(BIND("softmax", x, out)(tensor(codes)), runtime, "QLinearSoftmax")
    monkeypatch.setattr(softmax, "f32", float)
    with pytest.raises(AssertionError, match="1 of 5000 differ"):
        assert_same(BIND("softmax", x, out)(tensor(codes)), runtime, "QLinearSoftmax")
