"""Pools in files without `ceil_mode`, where sizes are known."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser

from qtool.backends.onnx.export.workarounds.pool_ceil_mode import remove_pool_ceil_mode

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g '
SAID = "kernel_shape = [2], ceil_mode = 1"
POOLS = {
    "a last window in the padding": f"AveragePool <{SAID}, strides = [3], pads = [0, 1]>",
    "one that hangs over": f"AveragePool <{SAID}, strides = [2]>",
    "with uneven pads": f"AveragePool <{SAID}, strides = [3], pads = [1, 0]>",
    "the same number": f'AveragePool <{SAID}, strides = [2], auto_pad = "SAME_UPPER">',
    "the same number, first": f'AveragePool <{SAID}, strides = [3], auto_pad = "SAME_LOWER">',
    "without pads": f'AveragePool <{SAID}, strides = [4], auto_pad = "VALID">',
    "counted padding": f"AveragePool <{SAID}, strides = [3], pads = [0, 1], count_include_pad = 1>",
    "powers": f"LpPool <{SAID}, strides = [2], p = 1>",
    "the largest": f"MaxPool <{SAID}, strides = [2], dilations = [2]>",
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=list(POOLS))
@pytest.mark.parametrize("size", [5, 7, 8])
def test_gives_the_same_and_its_sizes_are_those_that_onnx_infers(pool: str, size: int) -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, size)).astype(np.float32) - 3
    before = parser.parse_model(f"{HEAD}(float[1, 2, {size}] x) => (y) {{ y = {pool} (x) }}")
    after = _rewritten(before, x)
    assert not any(a.name == "ceil_mode" and a.i for a in after.graph.node[0].attribute)


def test_a_window_that_hangs_over_beside_one_that_would_begin_in_the_padding() -> None:
    pool = (
        "MaxPool <kernel_shape = [2, 2], dilations = [2, 2], pads = [1, 1, 1, 1], strides = [3, 3]"
    )
    text = f"{HEAD}(float[1, 2, 11, 9] x) => (y) {{ y = {pool}, ceil_mode = 1> (x) }}"
    before = parser.parse_model(text)
    x = np.random.default_rng(0).normal(size=(1, 2, 11, 9)).astype(np.float32) - 3
    _rewritten(before, x)


def test_what_counts_and_hangs_over_stays() -> None:
    pool = f"AveragePool <{SAID}, strides = [2], count_include_pad = 1>"
    text = f"{HEAD}(float[1, 2, 5] x) => (float[1, 2, 3] y) {{ y = {pool} (x) }}"
    read = ir.from_proto(parser.parse_model(text))
    remove_pool_ceil_mode(read)
    assert read.graph[0].attributes["ceil_mode"].as_int() == 1


def _rewritten(before: onnx.ModelProto, x: np.ndarray) -> onnx.ModelProto:
    """The file afterwards, of sizes that onnx infers as well, and giving the same."""
    truth = _run(before, x)
    read = ir.from_proto(before)
    read.graph.outputs[0].shape = ir.Shape(truth.shape)
    read.graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    remove_pool_ceil_mode(read)
    after = ir.to_proto(read)
    onnx.checker.check_model(after, full_check=True)
    assert np.array_equal(_run(after, x), truth)
    return after


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]
