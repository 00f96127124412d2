"""Modes beside static: what is written, what the runtime makes of it, and that both agree."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.integer_engine.matmul_nbits import FUSES_PRODUCTS
from qtool.core.data import Batch
from qtool.core.graph import torch_ops
from qtool.core.packed_codes import pack, unpack
from qtool.core.types import UINT4, UINT8, Dynamic
from qtool.evaluation.restored_model import restore
from qtool.frontends.captured_model import capture_model
from qtool.planning.fake_quantize import DynamicPoint
from tests.api.two_bits import needs_two_bits
from tests.backends.onnx.export.networks import run

ROWS, INPUTS = 12, 40  # 40 is no multiple of a block of 32


class Attention(nn.Module):
    """Three linear layers that read one tensor, one alone, an embedding and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, INPUTS)
        self.mix = nn.Conv1d(1, 1, 3, padding=1)
        self.query = nn.Linear(INPUTS, 24)
        self.key = nn.Linear(INPUTS, 24, bias=False)
        self.value = nn.Linear(INPUTS, 24)
        self.out = nn.Linear(24, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.mix(self.table(ids).unsqueeze(1)).squeeze(1)
        gate = torch.sigmoid(self.query(x) * self.key(x))
        return self.out(gate * self.value(x))


SEQUENCE = "mix"
"""The convolution, whose weights are codes for a kernel in float where weights alone are."""
LINEAR = ("query", "key", "value", "out")
KERNELS = {
    "dynamic": {"MatMulIntegerToFloat": 3, "DynamicQuantizeMatMul": 1},
    "weight-only": {"MatMulNBits": 4} if FUSES_PRODUCTS else {"Gemm": 3, "MatMul": 1},
    "weight-only-int4": {"MatMulNBits": 4},
    "weight-only-int2": {"MatMulNBits": 4},
}
MODES = [pytest.param(m, marks=needs_two_bits) if m == "weight-only-int2" else m for m in KERNELS]
every = pytest.mark.parametrize("mode", MODES)


def ids() -> torch.Tensor:
    return torch.arange(ROWS) % 20


@functools.cache
def captured() -> qtool.Captured:
    torch.manual_seed(0)
    return capture_model(Attention().eval(), ids())


@functools.cache
def quantized(mode: str) -> QuantizedModel:
    return quantize(captured(), [ids()], mode=mode, accuracy="fast")


@functools.cache
def verified(mode: str) -> qtool.Verification:
    return quantized(mode).verify()


@every
def test_linear_layers_run_in_the_kernels_of_the_mode(mode: str) -> None:
    rows = {r.name: r for r in verified(mode).coverage.rows}
    assert Counter(rows[n].kernel for n in LINEAR) == KERNELS[mode]
    assert {rows[n].integer for n in LINEAR} == {mode == "dynamic"}
    assert {rows[n].weights_only for n in LINEAR} == {mode != "dynamic"}
    stored = set() if mode == "dynamic" else {SEQUENCE}
    assert {n for n, r in rows.items() if r.integer or r.weights_only} == {*LINEAR, *stored}


@every
def test_macs_are_counted_once(mode: str) -> None:
    coverage = verified(mode).coverage
    linear = 3 * INPUTS * 24 + 24 * 10
    assert sum(r.macs for r in coverage.rows if r.name in LINEAR) == linear
    expected = linear / (linear + 3 * INPUTS)  # without the convolution
    assert coverage.share == pytest.approx(expected if mode == "dynamic" else 0)
    assert coverage.weight_share == pytest.approx(0 if mode == "dynamic" else 1)
    assert ("use integer weights and float activations" in str(coverage)) == (mode != "dynamic")


@every
def test_the_file_computes_what_the_simulation_does(mode: str) -> None:
    found = verified(mode)
    assert found.passed
    assert found.parity.as_written.worst < 0.01


@every
def test_verification_sees_wrong_weights(mode: str, tmp_path: Path) -> None:
    file = quantized(mode).to_onnx()
    (codes,) = (i for i in file.graph.initializer if i.name == "out.weight.codes")
    array = numpy_helper.to_array(codes).copy()
    flipped = array[::-1].copy()
    codes.CopyFrom(numpy_helper.from_array(flipped, codes.name))
    path = tmp_path / "model.onnx"
    onnx.save(file, path)
    assert quantized(mode).verify(path).parity.as_written.worst > 10


@every
def test_other_layers_stay_float_and_say_why(mode: str) -> None:
    plan = quantized(mode).plan
    reasons = {d.node: d.reason for d in plan.nodes}
    alone = "int8 weights, input and result in float"
    dynamic = f'only linear layers support that (mode "{mode}")'
    assert reasons[SEQUENCE] == (dynamic if mode == "dynamic" else alone)
    assert reasons["table"] == "its table is too small to gain from codes"
    assert not plan.observed()


@pytest.mark.parametrize("mode", ["weight-only", "weight-only-int4"])
def test_one_batch_is_enough_and_no_more_is_read(mode: str) -> None:
    def once() -> Any:
        yield ids()
        raise AssertionError("a second batch was asked for")

    made = quantize(captured(), once(), mode=mode, accuracy="fast")
    assert made.plan.nodes == quantized(mode).plan.nodes


RANGES = {
    "both signs": [-1.0, 0.3, 2.5],
    "positive": [0.5, 3.0, 1.0],
    "negative": [-0.5, -3.0],
    "zeros": [0.0, 0.0],
    "tiny": [1e-30, -2e-30],
    "a tie at the zero point": [-0.5, 254.5],
}


@pytest.mark.parametrize("values", RANGES.values(), ids=RANGES.keys())
def test_a_dynamic_point_is_dynamic_quantize_linear(values: list[float]) -> None:
    x = torch.tensor(values)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"])
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None])],
        [onnx.ValueInfoProto(name=n) for n in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    codes, scale, zero = run(model, (x,), optimise=False)
    mine, at = torch_ops.range_of_batch(x, 0, 255)
    assert (mine.item(), at.item()) == (scale.item(), zero.item())
    expected = (codes.astype(np.float32) - np.float32(zero)) * scale
    np.testing.assert_array_equal(DynamicPoint("x", Dynamic(UINT8))(x).numpy(), expected)


def test_the_gradient_passes_a_dynamic_point() -> None:
    x = torch.tensor([-1.0, 0.3, 2.5], requires_grad=True)
    DynamicPoint("x", Dynamic(UINT8))(x).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("layer", LINEAR)
def test_int4_codes_mean_what_the_simulation_says(layer: str) -> None:
    """The kernel with float inputs (accuracy level 1) against our own dequantized weights."""
    found = quantized("weight-only-int4")
    file = found.to_onnx()
    (node,) = (n for n in file.graph.node if n.name == layer)
    assert {a.name: a.i for a in node.attribute}["block_size"] == 32
    for attribute in node.attribute:
        if attribute.name == "accuracy_level":
            attribute.i = 1
    params, weight = found.parameters[f"{layer}.weight"], getattr(Attention(), layer).weight
    assert params.qtype is UINT4
    x = torch.randn(5, weight.shape[1])
    stored = {i.name: i for i in file.graph.initializer}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, [None, None])],
        [helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, [None, None])],
        [stored[n] for n in node.input[1:] if n],
    )
    one = helper.make_model(graph, opset_imports=file.opset_import, ir_version=10)
    module = dict(found.graph.module.named_parameters())
    real = params.dequantize(params.quantize(module[f"{layer}.weight"].detach()))
    bias = module.get(f"{layer}.bias")
    expected = nn.functional.linear(x, real, bias).detach().numpy()
    (result,) = run(one, (x,), optimise=False)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6)
    assert len(params.scale.unique()) > 1  # a wrong block would show


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_packing_is_reversible(count: int, bits: int) -> None:
    codes = (torch.arange(3 * count).reshape(3, count) % 2**bits).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, -(-count * bits // 8))
    assert torch.equal(unpack(packed, count, bits), codes)
    assert packed[0, 0] & (2**bits - 1) == codes[0, 0]  # the first in the low bits


def test_int8_weights_stand_in_the_file_as_codes_of_the_parameters() -> None:
    file, params = quantized("weight-only").to_onnx(), quantized("weight-only").parameters
    stored = {i.name: numpy_helper.to_array(i) for i in file.graph.initializer}
    weight = dict(captured().graph.module.named_parameters())["query.weight"].detach()
    expected = params["query.weight"].quantize(weight).t().numpy()
    np.testing.assert_array_equal(stored["query.weight.codes"], expected)
    assert not any(n.op_type == "QuantizeLinear" for n in file.graph.node)


def test_the_reference_runs_a_dynamic_file() -> None:
    """Standard ONNX: another implementation of it agrees."""
    file = quantized("dynamic").to_onnx()
    (expected,) = run(file, (ids(),), optimise=False)
    (found,) = ReferenceEvaluator(file).run(None, {"ids": ids().numpy()})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_layer_called_twice_keeps_one_copy_of_its_weights() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(torch.tanh(self.body(x)))

    model, x = Twice().eval(), torch.randn(4, 32)
    for mode in KERNELS:
        file = quantize(model, [x], mode=mode, accuracy="fast").to_onnx()
        assert sum(i.name.endswith(".codes") for i in file.graph.initializer) == 1


ZEROS = {
    "int8": {"as": "int8-weights"},
    "int8 in blocks": {"as": "int8-weights", "block": 16},
    "int4": {"as": "int8-weights", "weights": "int4", "block": 32},
    "uint4": {"as": "int4-weights"},
    "dynamic": {"as": "dynamic"},
    "static": {"as": "static"},
}


@pytest.mark.parametrize("rule", ZEROS.values(), ids=ZEROS.keys())
def test_channels_of_zeros_give_zero(rule: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    only, x = nn.Sequential(nn.Linear(INPUTS, 6)).eval(), torch.randn(64, INPUTS)
    with torch.no_grad():
        only[0].weight[2:4], only[0].bias[2:4] = 0, 0
    made = quantize(only, [x], recipe=[{"op": "linear", **rule}], accuracy="fast")
    file = tmp_path / "model.onnx"
    made.export(file)
    assert "0.weight: weights are zero" in "\n".join(made.notes)
    (found,) = run(onnx.load(file), (x,))
    assert not found[:, 2:4].any()
    assert np.abs(found[:, [0, 1, 4, 5]]).min() > 0
    with torch.no_grad():
        assert torch.equal(restore(file, capture_model(only, x), Batch((x,)))(x), made(x))
