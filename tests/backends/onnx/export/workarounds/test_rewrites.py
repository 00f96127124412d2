"""Workarounds of runtimes, as rewrites of the file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import parser
from torch import nn

import qtool
from qtool.backends.onnx.export.workarounds import (
    isolate_max_pool_pads,
    remove_pool_ceil_mode,
    write_additions_as_sums,
)
from qtool.backends.onnx.subgraph import unoptimized_session
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.openvino.runtime import isolate_reduce_extremes, widen_single_axis_pads


class Weighted(nn.Module):
    """Tokens of a linear layer, weighed along the sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.weights = nn.Linear(6, 8), nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).transpose(1, 2) @ self.weights


def test_the_file_gives_the_product(tmp_path: Path) -> None:
    model, data = Weighted().eval(), torch.randn(16, 5, 6)
    quantized = qtool.quantize(model, [data], accuracy="fast")
    quantized.export(tmp_path / "model.onnx")
    (found,) = run(session(tmp_path / "model.onnx"), [data.numpy()])
    real = model(data).detach()
    assert float((torch.from_numpy(found) - real).abs().max()) < 0.05 * float(real.abs().max())


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


PADDED = """(float[N, 2, 4, 4] x) => (y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}>
    { q = Pad (x, p) y = %s <kernel_shape = [2, 2]> (q) }"""
NORMED = """(float[2, N, 4] x) => (float[2, N, 4] y)
    <float[4] g = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 1}>
    { a = Add (x, %s) n = LayerNormalization <axis = -1> (a, g, b) y = %s }"""
REDUCED = """(float[N, 3, 4] x) => (y) <int64[1] axes = {1}>
    { y = %s <keepdims = %d> (x, axes) }"""
PADS = """(float[N, 3, 4] x) => (y) <int64[6] p = {%s}> { y = Pad <mode = "%s"> (x, p) }"""
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
    for one, other in zip(_outputs(before), _outputs(after), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert [node.op_type for node in after.graph.node] == operators.split()


def _outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    session = unoptimized_session(model)
    (x,) = session.get_inputs()
    values = -np.random.default_rng(0).random([4 if n == "N" else n for n in x.shape], np.float32)
    return session.run(None, {x.name: values})
