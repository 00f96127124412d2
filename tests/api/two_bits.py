"""ONNX Runtime 1.23, the oldest that qtool works with, does not load products of 2-bit weights."""

import pytest

from qtool.backends.onnxruntime.session import VERSION

HAS_TWO_BITS = VERSION >= (1, 31)
needs_two_bits = pytest.mark.skipif(
    not HAS_TWO_BITS, reason="2-bit weights are tested with ONNX Runtime 1.31"
)
