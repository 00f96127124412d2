"""A constant pad of one axis pads a second one, which a Slice cuts off."""

from __future__ import annotations

import pytest

from qtool.backends.openvino.workarounds.single_axis_pads import widen_single_axis_pads
from tests.backends.onnx.export.workarounds.rewritten import rewritten


@pytest.mark.parametrize(
    ("pads", "mode", "operators"),
    [
        ("0, 0, 1, 0, 0, 0", "constant", ["Pad", "Slice"]),
        ("0, 0, 0, 0, 0, 2", "constant", ["Pad", "Slice"]),
        ("0, 1, 1, 0, 0, 0", "constant", ["Pad"]),
        ("0, 0, -1, 0, 0, 0", "constant", ["Pad"]),
        ("0, 0, 1, 0, 0, 0", "reflect", ["Pad"]),
    ],
)
def test_only_constant_pads_of_one_axis_are_widened(
    pads: str, mode: str, operators: list[str]
) -> None:
    text = f"""(float[N, 3, 4] x) => (y) <int64[6] p = {{{pads}}}>
        {{ y = Pad <mode = "{mode}"> (x, p) }}"""
    assert rewritten(text, widen_single_axis_pads) == operators
