"""Small ONNX models before and after a workaround, run in ONNX Runtime as written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from qtool.backends.onnx.export.workarounds.max_pool_pads import isolate_max_pool_pads
from qtool.backends.onnx.export.workarounds.skip_layer_norms import write_additions_as_sums
from qtool.backends.onnx.subgraph import unoptimized_session
from qtool.backends.openvino.workarounds import reduce_extremes_before_quantize as reductions
from qtool.backends.openvino.workarounds import single_axis_pads

PADDED = """(float[N, 2, 4, 4] x) => (y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}>
    { q = Pad (x, p) y = %s <kernel_shape = [2, 2]> (q) }"""
NORMED = """(float[2, N, 4] x) => (float[2, N, 4] y)
    <float[4] g = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 1}>
    { a = Add (x, %s) n = LayerNormalization <axis = -1> (a, g, b) y = %s }"""
REDUCED = """(float[N, 3, 4] x) => (y) <int64[1] axes = {1}>
    { y = %s <keepdims = %d> (x, axes) }"""
PADS = """(float[N, 3, 4] x) => (y) <int64[6] p = {%s}> { y = Pad <mode = "%s"> (x, p) }"""
isolate_reduce_extremes = reductions.isolate_reduce_extremes
widen_single_axis_pads = single_axis_pads.widen_single_axis_pads
ROWS: list[tuple[Callable[[ir.Model], None], str, str]] = [
    (isolate_max_pool_pads, PADDED % "MaxPool", "Pad Max MaxPool"),
    (isolate_max_pool_pads, PADDED % "AveragePool", "Pad AveragePool"),
    (write_additions_as_sums, NORMED % ("x", "Relu (n)"), "Sum LayerNormalization Relu"),
    # a bias is not fused, nor are two readers
    (write_additions_as_sums, NORMED % ("g", "Relu (n)"), "Add LayerNormalization Relu"),
    (write_additions_as_sums, NORMED % ("x", "Mul (n, a)"), "Add LayerNormalization Mul"),
    # the dimensions come from a reshape
    (isolate_reduce_extremes, REDUCED % ("ReduceMax", 1), "ReduceMax Unsqueeze"),
    (isolate_reduce_extremes, REDUCED % ("ReduceMax", 0), "ReduceMax Squeeze"),
    (isolate_reduce_extremes, REDUCED % ("ReduceMin", 1), "ReduceMin Unsqueeze"),
    (isolate_reduce_extremes, REDUCED % ("ReduceMin", 0), "ReduceMin Squeeze"),
    (isolate_reduce_extremes, REDUCED % ("ReduceMean", 1), "ReduceMean"),
    # only constant pads of one axis are widened
    (widen_single_axis_pads, PADS % ("0, 0, 1, 0, 0, 0", "constant"), "Pad Slice"),
    (widen_single_axis_pads, PADS % ("0, 0, 0, 0, 0, 2", "constant"), "Pad Slice"),
    (widen_single_axis_pads, PADS % ("0, 1, 1, 0, 0, 0", "constant"), "Pad"),
    (widen_single_axis_pads, PADS % ("0, 0, -1, 0, 0, 0", "constant"), "Pad"),
    (widen_single_axis_pads, PADS % ("0, 0, 1, 0, 0, 0", "reflect"), "Pad"),
]


@pytest.mark.parametrize(("workaround", "text", "operators"), ROWS)
def test_operators_afterwards(
    workaround: Callable[[ir.Model], None], text: str, operators: str
) -> None:
    """The checker accepts the model, and its results stay equal."""
    before = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {text}')
    model = ir.from_proto(onnx.shape_inference.infer_shapes(before))
    for node in model.graph:
        node.name = node.outputs[0].name
    assert all(value.const_value is not None for value in model.graph.initializers.values())
    workaround(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    for one, other in zip(_run(before), _run(after), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert [node.op_type for node in after.graph.node] == operators.split()


def _run(model: onnx.ModelProto) -> list[np.ndarray]:
    session = unoptimized_session(model)
    (x,) = session.get_inputs()
    values = -np.random.default_rng(0).random([4 if n == "N" else n for n in x.shape], np.float32)
    return session.run(None, {x.name: values})
