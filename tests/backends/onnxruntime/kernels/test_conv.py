"""QLinearConv, QGemm, QLinearMatMul and MatMulIntegerToFloat against real sessions."""

import numpy as np
import pytest

from qtool.core.types import INT8, INT32, UINT8
from tests.backends.kernels.ort_session import MS, Model, element_type, params, qdq
from tests.backends.onnxruntime.kernels.oracle import BIND, KINDS, Draw, assert_same, tensor

TYPES = [(UINT8, INT8), (UINT8, UINT8)]
# rank, input channels, groups, outputs, kernel, stride, dilation, pads, sizes
SHAPES = {
    "1d": (1, 3, 1, 5, (3,), (2,), (1,), (1, 0), (13,)),
    "1x1": (2, 16, 1, 32, (1, 1), (1, 1), (1, 1), (0,) * 4, (7, 5)),
    "3x3": (2, 16, 1, 16, (3, 3), (1, 1), (1, 1), (1,) * 4, (9, 7)),
    "first layer": (2, 3, 1, 16, (3, 3), (2, 2), (1, 1), (0, 0, 1, 1), (11, 13)),
    "asymmetric": (2, 4, 1, 6, (3, 2), (2, 1), (1, 1), (0, 1, 2, 0), (8, 9)),
    "dilated": (2, 8, 1, 22, (3, 3), (1, 1), (2, 2), (2,) * 4, (9, 9)),
    "groups": (2, 8, 2, 12, (3, 3), (1, 2), (1, 1), (1,) * 4, (7, 9)),
    "depthwise": (2, 16, 16, 16, (3, 3), (2, 2), (1, 1), (1,) * 4, (9, 11)),
    "depthwise x2": (2, 3, 3, 6, (5, 5), (1, 1), (1, 1), (2,) * 4, (7, 7)),
    "3d": (3, 4, 1, 5, (2, 3, 1), (1, 2, 1), (1, 1, 1), (1, 0, 0, 0, 1, 0), (5, 6, 4)),
}


def weight_params(d, qtype, channels, per_channel, axis=0):
    scales = np.array([d.scale() / 16 for _ in range(channels)], np.float32)
    zero = int(d.rng.integers(100, 156)) if qtype is UINT8 else 0
    return params(qtype, scales, zero, axis) if per_channel else params(qtype, scales[0], zero)


def output_params(d, x, w, terms):
    scale = float(x.scale) * float(w.scale.max()) * np.sqrt(terms) * 30
    return d.params(UINT8, 2.0 ** np.round(np.log2(scale)) if d.kind == KINDS[1] else scale)


def bias_params(x, w):
    return params(INT32, (x.scale * w.scale).numpy(), 0, None if w.axis is None else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("x_type", "w_type"), TYPES, ids=["u8s8", "u8u8"])
def test_conv(x_type, w_type, shape, kind):
    _, inputs, groups, outputs, kernel, stride, dilation, pads, sizes = SHAPES[shape]
    d = Draw(len(shape), kind)
    codes = d.codes(x_type, 2, inputs, *sizes)
    weight = d.codes(w_type, outputs, inputs // groups, *kernel)
    x, w = d.params(x_type), weight_params(d, w_type, outputs, kind != KINDS[2])
    out = output_params(d, x, w, weight[0].size)
    bias = None if shape == "1x1" else d.bias(outputs)
    consts = [(weight, w)] + ([] if bias is None else [(bias, bias_params(x, w))])
    attrs = {"strides": stride, "pads": pads, "dilations": dilation, "group": groups}
    runtime = qdq("Conv", [(codes, x)], out, consts=consts, **attrs)
    bound = BIND(
        "conv", x, w, out, tensor(weight), None if bias is None else tensor(bias),
        stride=stride, pads=pads, dilation=dilation, groups=groups,
    )  # fmt: skip
    assert_same(bound(tensor(codes)), runtime, "QLinearConv")


def test_conv_with_extreme_codes():
    """Largest sums of products: nothing saturates on the way (VNNI), float32 is left in time."""
    codes = np.full((1, 512, 5, 5), 255, np.uint8)
    weight = np.full((16, 512, 3, 3), 127, np.int8)
    weight[::2] = -128
    x, w, out = params(UINT8, 0.01, 0), params(INT8, 0.001), params(UINT8, 8.0, 128)
    runtime = qdq("Conv", [(codes, x)], out, consts=[(weight, w)], pads=[1] * 4)
    got = BIND("conv", x, w, out, tensor(weight), pads=1)(tensor(codes))
    assert_same(got, runtime, "QLinearConv")
    assert len(set(got.flatten().tolist())) > 4


def test_conv_with_a_redundant_relu():
    d = Draw(3)
    codes, weight = d.codes(UINT8, 1, 8, 6, 6), d.codes(INT8, 16, 8, 3, 3)
    x, w, out = d.params(UINT8), params(INT8, 0.01), params(UINT8, 0.9, 0)
    m = Model()
    names = [m.dq(m.feed(codes), x), m.dq(m.const(weight), w)]
    value = m.node("Relu", [m.node("Conv", names)])
    runtime = m.run(m.q(value, out), element_type(out.qtype))
    got = BIND("conv", x, w, out, tensor(weight))(tensor(codes))
    assert_same(got, runtime, "QLinearConv")


def test_conv_of_int8_activations():
    """Reached only through the QLinear operator; QDQ graphs run uint8."""
    for seed, kind in enumerate(KINDS):
        d = Draw(seed, kind)
        codes, weight, bias = d.codes(INT8, 2, 5, 9, 8), d.codes(INT8, 7, 5, 3, 3), d.bias(7)
        x, w = d.params(INT8), weight_params(d, INT8, 7, True)
        out = d.params(INT8, float(output_params(d, x, w, 45).scale))
        m = Model()
        name = m.node(
            "QLinearConv",
            [m.feed(codes), *m.qp(x), m.const(weight), *m.qp(w), *m.qp(out), m.const(bias)],
            strides=[2, 1],
        )
        got = BIND("conv", x, w, out, tensor(weight), tensor(bias), stride=(2, 1))(tensor(codes))
        assert_same(got, m.run(name, element_type(out.qtype)), "QLinearConv")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("x_type", "w_type"), TYPES, ids=["u8s8", "u8u8"])
@pytest.mark.parametrize("float_out", [False, True])
def test_linear(x_type, w_type, per_channel, kind, float_out):
    for rows, inner, outer in ((1, 3, 1), (8, 64, 33), (5, 300, 10)):
        d = Draw(rows, kind)
        codes, weight, bias = (
            d.codes(x_type, rows, inner),
            d.codes(w_type, outer, inner),
            d.bias(outer),
        )
        x, w = d.params(x_type), weight_params(d, w_type, outer, per_channel)
        out = None if float_out else output_params(d, x, w, inner)
        consts = [(weight, w), (bias, bias_params(x, w))]
        runtime = qdq("Gemm", [(codes, x)], out, consts=consts, transB=1)
        got = BIND("linear", x, w, out, tensor(weight), tensor(bias))(tensor(codes))
        assert_same(got, runtime, "QGemm")


@pytest.mark.parametrize("float_out", [False, True])
def test_linear_without_bias_on_three_axes(float_out):
    d = Draw(5)
    codes, weight = d.codes(UINT8, 2, 7, 48), d.codes(INT8, 20, 48)
    x, w = d.params(UINT8), weight_params(d, INT8, 20, True)
    stored = params(INT8, w.scale.numpy(), 0, 1)
    out = None if float_out else output_params(d, x, w, 48)
    runtime = qdq("MatMul", [(codes, x)], out, consts=[(weight.T.copy(), stored)])
    got = BIND("linear", x, w, out, tensor(weight))(tensor(codes))
    assert_same(got, runtime, "MatMulIntegerToFloat" if float_out else "QLinearMatMul")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("float_out", [False, True])
@pytest.mark.parametrize("inner", [20, 300])
def test_matmul_of_two_activations(kind, float_out, inner):
    d = Draw(6, kind)
    left, right = d.codes(UINT8, 2, 3, 5, inner), d.codes(UINT8, 2, 3, inner, 9)
    a, b = d.params(UINT8), d.params(UINT8)
    out = None if float_out else output_params(d, a, b, inner * 9)
    runtime = qdq("MatMul", [(left, a), (right, b)], out)
    got = BIND("matmul", a, b, out)(tensor(left), tensor(right))
    assert_same(got, runtime, "MatMulIntegerToFloat" if float_out else "QLinearMatMul")


@pytest.mark.parametrize("operator", ["QGemm", "QLinearMatMul"])
def test_linear_of_int8_activations(operator):
    d = Draw(7, KINDS[1])
    codes, weight = d.codes(INT8, 9, 40), d.codes(INT8, 40, 12)
    x, w, out = d.params(INT8), params(INT8, 0.0625), d.params(INT8, 2.0)
    m, gemm = Model(), operator == "QGemm"
    names = [m.feed(codes), *m.qp(x), m.const(weight), *m.qp(w)]
    bias = d.bias(12) if gemm else None
    names += ([m.const(bias)] if gemm else []) + m.qp(out)
    runtime = m.run(m.node(operator, names, MS if gemm else ""), element_type(out.qtype))
    got = BIND("linear", x, w, out, tensor(weight.T), None if bias is None else tensor(bias))
    assert_same(got(tensor(codes)), runtime, operator)


def test_another_rounding_would_be_seen():
    """Ties are there: rounding halves away from zero gives other codes."""
    d = Draw(9)
    codes, weight = d.codes(UINT8, 8, 64), d.rng.integers(-3, 4, (10, 64)).astype(np.int8)
    x, w, out = params(UINT8, 0.25, 128), params(INT8, 0.25), params(UINT8, 1.0, 128)
    runtime = qdq("MatMul", [(codes, x)], out, consts=[(weight.T.copy(), w)])
    sums = (codes.astype(int) - 128) @ weight.T.astype(int) / 16
    away = np.clip(np.sign(sums) * np.floor(np.abs(sums) + 0.5) + 128, 0, 255).astype(np.uint8)
    with pytest.raises(AssertionError, match="differ"):
        assert_same(tensor(away), runtime, "QLinearMatMul")
