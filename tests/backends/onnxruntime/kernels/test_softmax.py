"""QLinearSoftmax against real sessions."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.backends.onnxruntime.kernels import softmax
from qtool.core.types import INT8, UINT8
from tests.backends.kernels.ort_session import params, qdq
from tests.backends.onnxruntime.kernels.oracle import BIND, KINDS, Draw, assert_same, tensor


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
