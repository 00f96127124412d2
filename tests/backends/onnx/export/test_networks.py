"""The shared helpers fail when they should."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.backends.onnx.export.networks import (
    assert_same_codes,
    codes_apart,
    computing,
    model,
    quantized,
    samples,
)


@pytest.mark.parametrize("part", ["first.weight.codes", "first.bias.codes", "second.bias.scale"])
def test_same_codes_sees_a_corrupted_file(part: str) -> None:
    file = model("conv1d")
    (found,) = (i for i in file.graph.initializer if i.name == part)
    array = numpy_helper.to_array(found).copy()
    array[0] = (
        array[0] // 2 - (900 if array.dtype == np.int32 else 9)
        if array.dtype.kind == "i"
        else array[0] * 4
    )
    found.CopyFrom(numpy_helper.from_array(array, part))
    with pytest.raises(AssertionError):
        assert_same_codes(quantized("conv1d"), file, samples("conv1d", 16))


@pytest.mark.parametrize(("value", "apart"), [(4.0, 0), (3.5, 2), (np.nan, np.inf)])
def test_codes_apart_sees_another_value(value: float, apart: float) -> None:
    one = [np.array([0.0, 2.0, 4.0], np.float32)]
    other = [np.array([0.0, 2.0, value], np.float32)]
    assert codes_apart(one, other, [0.25]) == apart


def test_codes_apart_refuses_other_shapes() -> None:
    with pytest.raises(AssertionError):
        codes_apart([np.zeros(2)], [np.zeros(3)], [1.0])


def test_computing_counts_what_computes_and_not_shapes() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[N,2] x) => (float[N,2] y) <int64[1] two = {2}> {
        n = Shape <end=1> (x)
        sizes = Concat <axis=0> (n, two)
        z = Reshape (x, sizes)
        y = Concat <axis=1> (z)
    }"""
    assert computing(onnx.parser.parse_model(text).graph) == {"Concat": 1}
