"""QuantizeLinear, DequantizeLinear, and the pair of them."""

import numpy as np
import pytest
from onnx import TensorProto

from qtool.backends.onnxruntime.kernels.common import requantize
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import Model, element_type, params
from tests.backends.onnxruntime.kernels.oracle import (
    BIND,
    KINDS,
    Draw,
    assert_same,
    every_code,
    tensor,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
class TestAgainstTheRuntime:
    def test_quantize(self, qtype, kind):
        d = Draw(1, kind)
        out = d.params(qtype)
        halves = np.arange(-1000, 1000) * 0.5 * float(out.scale)  # every tie
        wide = d.rng.normal(0, 200 * float(out.scale), 5000)
        values = np.concatenate([halves, wide, [np.inf, -np.inf, 1e30]]).astype(np.float32)
        m = Model()
        runtime = m.run(m.q(m.feed(values), out), element_type(qtype))
        assert_same(BIND("quantize", out)(tensor(values)), runtime, "QuantizeLinear")

    def test_dequantize(self, qtype, kind):
        x, m = Draw(2, kind).params(qtype), Model()
        runtime = m.run(m.dq(m.feed(every_code(qtype)), x), TensorProto.FLOAT)
        got = BIND("dequantize", x)(tensor(every_code(qtype)))
        assert_same(got, runtime, "DequantizeLinear")

    def test_requantize(self, qtype, kind):
        for seed in range(5):
            d = Draw(seed, kind)
            x, out, m = d.params(qtype), d.params(qtype), Model()
            value = m.dq(m.feed(every_code(qtype)), x)
            runtime = m.run(m.q(value, out), element_type(qtype))
            got = requantize(x, out)(tensor(every_code(qtype)))
            assert_same(got, runtime, "DequantizeLinear", "QuantizeLinear")


def test_multiplying_by_the_reciprocal_would_be_seen():
    caught = 0
    for seed in range(10):
        scale = np.float32(Draw(seed).scale())
        values = (np.arange(-100, 100) + 0.5).astype(np.float32) * scale
        out, m = params(UINT8, scale, 128), Model()
        runtime = m.run(m.q(m.feed(values), out), element_type(UINT8))
        steps = np.rint(values * (np.float32(1) / scale)) + 128
        caught += int((np.clip(steps, 0, 255) != runtime[0]).any())
        assert_same(BIND("quantize", out)(tensor(values)), runtime, "QuantizeLinear")
    assert caught > 0
