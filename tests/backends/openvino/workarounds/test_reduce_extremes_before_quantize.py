"""A reshape follows each maximum and minimum along axes."""

from __future__ import annotations

import pytest

from qtool.backends.openvino.workarounds.reduce_extremes_before_quantize import (
    isolate_reduce_extremes,
)
from tests.backends.onnx.export.workarounds.rewritten import rewritten


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(("keep", "reshape"), [(1, "Unsqueeze"), (0, "Squeeze")])
def test_the_dimensions_come_from_a_reshape(operator: str, keep: int, reshape: str) -> None:
    text = f"""(float[N, 3, 4] x) => (y) <int64[1] axes = {{1}}>
        {{ y = {operator} <keepdims = {keep}> (x, axes) }}"""
    assert rewritten(text, isolate_reduce_extremes) == [operator, reshape]


def test_other_reductions_stay() -> None:
    text = """(float[N, 3, 4] x) => (y) <int64[1] axes = {1}> { y = ReduceMean (x, axes) }"""
    assert rewritten(text, isolate_reduce_extremes) == ["ReduceMean"]
