"""Pools and element-wise kernels against real sessions."""

import numpy as np
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

from qtool.backends.onnxruntime.kernels import elementwise
from qtool.backends.onnxruntime.kernels.common import to_codes, to_float
from qtool.core.errors import KernelError
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import params, qdq
from tests.backends.onnxruntime.kernels.oracle import BIND, FUSED, KINDS, Draw, assert_same, tensor

# sizes, kernel, stride, pads
WINDOWS = {
    "1d": ((11,), (3,), (2,), (1, 0)),
    "2d": ((9, 7), (3, 2), (2, 1), (1, 0, 0, 1)),
    "2d whole": ((2, 2), (2, 2), (1, 1), (0,) * 4),  # a global average pool in the runtime
    "2d padded whole": ((2, 2), (2, 2), (1, 1), (0, 1, 0, 0)),
    "2d larger": ((1, 5), (2, 3), (2, 1), (0,) * 4),  # the runtime divides towards zero
    "3d": ((5, 6, 4), (2, 3, 2), (1, 2, 2), (1, 0, 0, 0, 1, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("window", WINDOWS)
def test_average_pool(window, qtype, include_pad, kind):
    sizes, kernel, stride, pads = WINDOWS[window]
    d = Draw(1, kind)
    codes, x, out = d.codes(qtype, 2, 50, *sizes), d.params(qtype), d.params(qtype)
    attrs = {"kernel_shape": kernel, "strides": stride, "pads": pads}
    runtime = qdq("AveragePool", [(codes, x)], out, count_include_pad=int(include_pad), **attrs)
    bound = BIND(
        "average_pool", x, out, kernel=kernel, stride=stride, pads=pads,
        count_include_pad=include_pad,
    )  # fmt: skip
    assert_same(bound(tensor(codes)), runtime, "QLinearAveragePool")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("sizes", [(1,), (7, 7), (3, 5, 2)])
def test_global_average_pool(sizes, qtype, kind):
    d = Draw(2, kind)
    codes, x, out = d.codes(qtype, 16, 40, *sizes), d.params(qtype), d.params(qtype)
    runtime = qdq("GlobalAveragePool", [(codes, x)], out)
    got = BIND("global_average_pool", x, out)(tensor(codes))
    assert_same(got, runtime, "QLinearGlobalAveragePool")


def test_global_average_pool_refuses_what_the_runtime_refuses():
    codes, x, out = Draw(5).codes(UINT8, 1, 2, 2, 1), params(UINT8, 1024.0), params(UINT8, 1.0)
    with pytest.raises(RuntimeException, match="out of computation range"):
        qdq("GlobalAveragePool", [(codes, x)], out)
    with pytest.raises(KernelError, match="closer together"):
        BIND("global_average_pool", x, out)(tensor(codes))


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("window", WINDOWS)
def test_max_pool(window, qtype, dilation):
    sizes, kernel, stride, pads = WINDOWS[window]
    if dilation > 1:
        sizes = tuple(2 * n for n in sizes)
    d = Draw(3)
    codes, x = d.codes(qtype, 2, 3, *sizes), d.params(qtype)
    attrs = {"kernel_shape": kernel, "strides": stride, "pads": pads}
    runtime = qdq("MaxPool", [(codes, x)], x, dilations=[dilation] * len(sizes), **attrs)
    bound = BIND("max_pool", x, x, kernel=kernel, stride=stride, pads=pads, dilation=dilation)
    assert_same(bound(tensor(codes)), runtime, "MaxPool")


def test_another_order_of_rounding_would_be_seen():
    """The zero point joins before the rounding: outside of it, ties fall elsewhere."""
    codes = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    x, out = params(UINT8, 1.0, 0), params(UINT8, 2.0, 7)
    runtime = qdq("AveragePool", [(codes, x)], out, kernel_shape=[1, 1])
    outside = np.clip(np.rint(codes / 2.0) + 7, 0, 255).astype(np.uint8)
    with pytest.raises(AssertionError, match="differ"):
        assert_same(tensor(outside), runtime, "QLinearAveragePool")


RAN = {"add": ["QLinearAdd"], "mul": ["QLinearMul"]}


def pairs(qtype):
    grid = np.arange(qtype.qmin, qtype.qmax + 1).astype(qtype.numpy_dtype)
    return np.meshgrid(grid, grid)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("op", RAN)
def test_all_pairs_of_codes(op, qtype, kind):
    x, y = pairs(qtype)
    for seed in range(4):
        d = Draw(seed, kind)
        a, b, out = (d.params(qtype) for _ in range(3))
        runtime = qdq(op.capitalize(), [(x, a), (y, b)], out)
        assert_same(BIND(op, a, b, out)(tensor(x), tensor(y)), runtime, *RAN[op])


SHAPES = {
    "first per channel": ((16, 1, 1), (2, 16, 9, 13)),
    "first scalar": ((), (2, 16, 9, 13)),
    "first repeats, last axis single": ((16, 1, 1), (2, 16, 9, 1)),
    "second per channel": ((2, 16, 9, 13), (16, 1, 1)),
    "second scalar": ((2, 16, 9, 13), (1,)),
    "both": ((2, 16, 1, 13), (2, 1, 9, 1)),
    "both, first repeats": ((2, 1, 9, 1), (2, 16, 1, 13)),
}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("op", RAN)
def test_broadcasting(op, qtype, shapes):
    for seed in range(12):
        d = Draw(seed, KINDS[seed % 3])
        x, y = (d.codes(qtype, *shape) for shape in SHAPES[shapes])
        a, b, out = (d.params(qtype) for _ in range(3))
        runtime = qdq(op.capitalize(), [(x, a), (y, b)], out)
        assert_same(BIND(op, a, b, out)(tensor(x), tensor(y)), runtime, *RAN[op])


@FUSED
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
def test_add_by_table_where_plain_float32_is_not_exact(qtype):
    """Scales at which the fused multiply-adds matter: the pairs' table has to answer."""
    x, y = pairs(qtype)
    tables = 0
    for seed in range(60):
        d = Draw(seed, "small multiples")
        a, b, out = (d.params(qtype) for _ in range(3))
        kernel = BIND("add", a, b, out)
        if elementwise._add_in_order(a, b, out).__name__ == "by_table" and tables < 3:
            tables += 1
            runtime = qdq("Add", [(x, a), (y, b)], out)
            assert_same(kernel(tensor(x), tensor(y)), runtime, "QLinearAdd")
            last = tensor(x).reshape(4, 4, 64, 64).contiguous(memory_format=torch.channels_last)
            other = tensor(y).reshape(4, 4, 64, 64)
            assert torch.equal(kernel(last, other).flatten(), tensor(runtime[0]).flatten())
    assert tables == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qtype", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("axis", [1, -1])
def test_concat(qtype, kind, axis):
    d = Draw(1, kind)
    out = d.params(qtype)
    given = [d.params(qtype), out, d.params(qtype)]
    codes = [d.codes(qtype, 2, 16, 16), d.codes(qtype, 2, 16, 16), d.codes(qtype, 2, 16, 16)]
    runtime = qdq("Concat", list(zip(codes, given, strict=True)), out, axis=axis)
    kernel = BIND("concat", given, out, axis=axis)
    assert_same(kernel(*map(tensor, codes)), runtime, "QLinearConcat")


def test_float_imitations_would_be_seen():
    """Dequantize, add or multiply, quantize is not what the fused kernels compute."""
    x, y = pairs(UINT8)
    a, b, out = params(UINT8, 0.25, 3), params(UINT8, 0.5, 128), params(UINT8, 1.0, 7)
    left, right = to_float(tensor(x), a), to_float(tensor(y), b)
    for op, value in (("Add", left + right), ("Mul", left * right)):
        runtime = qdq(op, [(x, a), (y, b)], out)
        with pytest.raises(AssertionError, match="differ"):
            assert_same(to_codes(value, out), runtime, f"QLinear{op}")


@FUSED
def test_add_with_two_roundings_would_be_seen(monkeypatch):
    """A mutant: product and sum rounded apart, as without fused multiply-add."""
    monkeypatch.setattr(elementwise, "fma32", lambda a, b, c: a * b + c)
    x, y = pairs(UINT8)
    caught = 0
    for seed in range(60):
        d = Draw(seed, "small multiples")
        a, b, out = (d.params(UINT8) for _ in range(3))
        got = elementwise.add(a, b, out)(tensor(x), tensor(y))
        caught += int((got.numpy() != qdq("Add", [(x, a), (y, b)], out)[0]).any())
    assert caught > 0
