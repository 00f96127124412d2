"""A small residual network, kernel after kernel, against one session of the fused graph.

The runtime runs most of it in channels-last order, which single operators do not show.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from onnx import TensorProto

from qtool.core.quant_params import QuantParams
from qtool.core.types import INT8, INT32, UINT8
from tests.backends.kernels.ort_session import Model, params
from tests.backends.onnxruntime.kernels.oracle import BIND, Draw, tensor


@dataclass
class Point:
    """One tensor in both worlds: its name in the model, our codes, its parameters."""

    name: str
    codes: torch.Tensor
    params: QuantParams


class Net:
    """Adds an operator to the ONNX graph and runs the bound kernel at once."""

    def __init__(self, seed: int) -> None:
        self.draw, self.model = Draw(seed), Model()

    def feed(self, codes: np.ndarray, p: QuantParams) -> Point:
        return Point(self.model.feed(codes), tensor(codes), p)

    def step(self, op: str, key: str, xs: list[Point], out: QuantParams, attrs=None, **kw) -> Point:
        m = self.model
        value = m.node(op, [m.dq(x.name, x.params) for x in xs], **(attrs or {}))
        given = [x.params for x in xs]
        kernel = BIND(key, *([given] if key == "concat" else given), out, **kw)
        return Point(m.q(value, out), kernel(*[x.codes for x in xs]), out)

    def weight(
        self, x: Point, *shape: int
    ) -> tuple[np.ndarray, QuantParams, np.ndarray, list[str]]:
        weight = self.draw.rng.integers(-127, 128, shape).astype(np.int8)
        scales = np.exp(self.draw.rng.uniform(-6, -4, shape[0])).astype(np.float32)
        w, bias = params(INT8, scales, 0, 0), self.draw.bias(shape[0], 3000)
        m = self.model
        names = [m.dq(x.name, x.params), m.dq(m.const(weight), w)]
        b = params(INT32, (x.params.scale * w.scale).numpy(), 0, 0)
        return weight, w, bias, [*names, m.dq(m.const(bias), b)]

    def conv(
        self, x: Point, outs: int, k: int, stride: int, pads: list[int], *, relu=True, groups=1
    ):
        weight, w, bias, names = self.weight(x, outs, x.codes.shape[1] // groups, k, k)
        scale = float(x.params.scale) * float(w.scale.mean()) * np.sqrt(weight[0].size) * 6
        out = params(UINT8, scale, 0 if relu else 128)
        m = self.model
        value = m.node("Conv", names, strides=[stride] * 2, pads=pads, group=groups)
        if relu:
            value = m.node("Relu", [value])
        kernel = BIND(
            "conv", x.params, w, out, tensor(weight), tensor(bias),
            stride=stride, pads=pads, groups=groups,
        )  # fmt: skip
        return Point(m.q(value, out), kernel(x.codes), out)


@pytest.mark.parametrize("channels", [8, 16, 20])
@pytest.mark.parametrize("size", [(9, 12), (10, 10), (17, 13)])
def test_every_logit_is_equal(size, channels):
    net = Net(channels + size[0])
    x = net.feed(net.draw.codes(UINT8, 3, 3, *size), params(UINT8, 0.02, 118))
    a = net.conv(x, channels, 3, 1, [1] * 4)
    b = net.conv(a, channels, 3, 1, [1] * 4, groups=channels)
    c = net.conv(b, channels, 1, 1, [0] * 4, relu=False)
    total = params(UINT8, float(a.params.scale) * 1.3, 7)
    y = net.step("Add", "add", [a, c], total)
    window = {"kernel": (3, 3), "stride": (2, 2), "pads": (0, 0, 1, 1)}
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}
    y = net.step("MaxPool", "max_pool", [y], total, attrs, **window)
    d = net.conv(y, 2 * channels, 3, 2, [1] * 4)
    e = net.conv(y, channels, 1, 2, [0] * 4, relu=False)
    joined = params(UINT8, float(d.params.scale), 60)
    y = net.step("Concat", "concat", [d, e], joined, {"axis": 1}, axis=1)
    pooled = params(UINT8, float(joined.scale) * 0.9, 61)
    attrs = {"kernel_shape": [2, 2], "strides": [1, 1]}
    y = net.step("AveragePool", "average_pool", [y], pooled, attrs, kernel=(2, 2), stride=(1, 1))
    narrow = params(UINT8, float(joined.scale) * 0.5, 90)
    y = net.step("GlobalAveragePool", "global_average_pool", [y], narrow)
    flat = Point(
        net.model.node("Flatten", [net.model.dq(y.name, narrow)]), y.codes.flatten(1), narrow
    )
    flat.name = net.model.q(flat.name, narrow)
    weight, w, bias, names = net.weight(flat, 10, 3 * channels)
    logits = BIND("linear", narrow, w, None, tensor(weight), tensor(bias))(flat.codes)
    want, ran = net.model.run(net.model.node("Gemm", names, transB=1), TensorProto.FLOAT)
    assert np.array_equal(logits.numpy(), want)
    assert "DequantizeLinear" not in ran  # everything ran in integer kernels
    assert len(np.unique(want)) > 15  # and the codes did not all saturate
