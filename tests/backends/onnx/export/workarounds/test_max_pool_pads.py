"""A Max of one input stands between a pad and a max pool."""

from __future__ import annotations

from qtool.backends.onnx.export.workarounds.max_pool_pads import isolate_max_pool_pads
from tests.backends.onnx.export.workarounds.rewritten import rewritten

PADDED = """(float[N, 2, 4, 4] x) => (y) <int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}>
    {{ q = Pad (x, p)
       y = {} <kernel_shape = [2, 2]> (q) }}"""


def test_a_pad_before_a_max_pool_is_isolated() -> None:
    operators = rewritten(PADDED.format("MaxPool"), isolate_max_pool_pads)
    assert operators == ["Pad", "Max", "MaxPool"]


def test_a_pad_before_another_pool_stays() -> None:
    operators = rewritten(PADDED.format("AveragePool"), isolate_max_pool_pads)
    assert operators == ["Pad", "AveragePool"]
