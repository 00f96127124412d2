"""An addition that a layer norm reads, which the runtime would fuse to a slow kernel."""

from __future__ import annotations

import pytest

from qtool.backends.onnx.export.workarounds.skip_layer_norms import write_additions_as_sums
from tests.backends.onnx.export.workarounds.rewritten import rewritten

NORM = "n = LayerNormalization <axis = -1> (a, g, b)"


@pytest.mark.parametrize(
    ("second", "result", "operators"),
    [
        ("x", "y = Relu (n)", ["Sum", "LayerNormalization", "Relu"]),
        ("g", "y = Relu (n)", ["Add", "LayerNormalization", "Relu"]),  # a bias: not fused
        ("x", "y = Mul (n, a)", ["Add", "LayerNormalization", "Mul"]),  # nor are two readers
    ],
)
def test_it_becomes_a_sum(second: str, result: str, operators: list[str]) -> None:
    text = f"""(float[2, N, 4] x) => (float[2, N, 4] y)
        <float[4] g = {{1, 2, 3, 4}}, float[4] b = {{0, 1, 0, 1}}> {{
            a = Add (x, {second})
            {NORM}
            {result}
        }}"""
    assert rewritten(text, write_additions_as_sums) == operators
