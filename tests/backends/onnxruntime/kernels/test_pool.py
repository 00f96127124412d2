"""Pooling and means against real sessions."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

from qtool.core.errors import KernelError
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import params, qdq
from tests.backends.onnxruntime.kernels.oracle import BIND, KINDS, Draw, assert_same, tensor

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
