"""Weights of 4 and 2 bits: in the int8 kernels, alone in blocks, and alone per channel."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from qtool import Captured, QuantizedModel, Verification, capture_model
from qtool.api.conversion import quantize
from qtool.core.data import Batch
from qtool.core.types import INT4
from qtool.evaluation.restored_model import restore
from qtool.planning.plan import Kind
from tests.api.two_bits import HAS_TWO_BITS, needs_two_bits
from tests.models.arms import Arms
from tests.planning.targets.converted import captured, network, samples

ROWS = torch.randn(16, 12, generator=torch.Generator().manual_seed(1))
INT4_RULE = [{"select": "*", "weights": "int4"}]


@cache
def static(name: str, target: str = "onnxruntime", observer: str = "minmax") -> QuantizedModel:
    recipe = [{**INT4_RULE[0], "weight_observer": observer}]
    given = {"target": target, "recipe": recipe, "accuracy": "fast"}  # each to its nearest code
    return quantize(captured(name), [samples(name)], **given)


def codes(file: onnx.ModelProto) -> dict[str, np.ndarray]:
    found = file.graph.initializer
    return {i.name: numpy_helper.to_array(i) for i in found if i.name.endswith("weight.codes")}


@pytest.mark.parametrize("name", ["residual_concat", "depthwise"])
def test_codes_of_4_bits_run_in_the_int8_kernels(name: str, tmp_path: Path) -> None:
    found = static(name).export(tmp_path / "model.onnx")
    assert found.coverage.share == 1.0
    assert found.exactness.exact
    stored = codes(onnx.load(tmp_path / "model.onnx"))
    assert stored
    for array in stored.values():
        assert array.dtype == np.int8
        assert array.min() >= INT4.qmin
        assert array.max() == INT4.qmax


def test_weights_are_on_the_grid_that_the_simulation_has() -> None:
    model = static("residual_concat")
    stored = codes(model.to_onnx())
    for point in (p for p in model.plan if p.kind is Kind.WEIGHT):
        params = model.parameters[point.name]
        weight = network("residual_concat").get_parameter(point.name)
        expected = torch.round(weight / params.along(params.scale, weight.shape)).clamp(-8, 7)
        found = torch.from_numpy(stored[f"{point.name}.codes"].copy())
        assert torch.equal(found.float(), expected)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt", "tflite"])
def test_every_target_takes_them(target: str, tmp_path: Path) -> None:
    found = static("residual_concat", target).export(tmp_path / "model.onnx")
    assert found.passed


def test_the_observer_of_weights_is_chosen() -> None:
    usual, by_error = static("residual_concat"), static("residual_concat", observer="mse")
    errors = []
    for model in (usual, by_error):
        weight = network("residual_concat").second.weight.detach()
        params = model.parameters["second.weight"]
        errors.append(float((params.dequantize(params.quantize(weight)) - weight).square().sum()))
    assert errors[1] < errors[0]
    assert usual.parameters["x"].scale == by_error.parameters["x"].scale


ALONE: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "blocks of 16": ({"as": "int4-weights", "block": 16}, (5, 1, 8)),
    "blocks of 32": ({"as": "int4-weights"}, (5, 1, 16)),
    "signed blocks": ({"as": "int4-weights", "weights": "int4", "block": 16}, (5, 1, 8)),
    "per channel": ({"as": "int8-weights", "weights": "int4"}, (5, 1, 8)),
    "a zero point for each channel": ({"as": "int4-weights", "block": "channel"}, (5, 1, 8)),
    "2 bits in blocks of 64": ({"as": "int2-weights", "block": 64}, (5, 1, 16)),
    "2 bits in signed blocks": ({"as": "int2-weights", "weights": "int2"}, (5, 1, 8)),
    "2 bits, a zero point for each channel": (
        {"as": "int2-weights", "block": "channel"},
        (5, 1, 8),
    ),
    "bytes in blocks": ({"as": "int8-weights", "block": 16}, (5, 1, 16)),
    "bytes with zero points": ({"as": "int8-weights", "weights": "uint8", "block": 32}, (5, 1, 32)),
    "dynamic": ({"as": "dynamic", "weights": "int4"}, (12, 5)),
}


class Alone(NamedTuple):
    """A layer for each rule, in one file: all is in float between them."""

    captured: Captured
    model: QuantizedModel
    path: Path
    verification: Verification


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    torch.manual_seed(0)
    rules = {n: rule for n, (rule, _) in ALONE.items() if "2 bits" not in n or HAS_TWO_BITS}
    layers = {name.replace(" ", "_"): nn.Linear(12, 5) for name in rules}
    captured = capture_model(Arms(layers).eval(), ROWS)
    recipe = [{"select": name, **rule} for name, rule in zip(layers, rules.values(), strict=True)]
    model = quantize(captured, [ROWS], recipe=recipe, accuracy="fast")
    path = tmp_path_factory.mktemp("alone") / "model.onnx"
    return Alone(captured, model, path, model.export(path))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[needs_two_bits] if "2 bits" in n else []) for n in ALONE]
)
def test_weights_of_a_linear_layer_alone(name: str, alone: Alone) -> None:
    (rule, shape), layer = ALONE[name], name.replace(" ", "_")
    assert codes(onnx.load(alone.path))[f"{layer}.weight.codes"].shape == shape
    (row,) = (r for r in alone.verification.coverage.rows if r.name == layer)
    assert row.kernel == ("DynamicQuantizeMatMul" if rule["as"] == "dynamic" else "MatMulNBits")


def test_layers_alone_compute_what_the_simulation_does(alone: Alone) -> None:
    assert alone.verification.parity.as_written.worst < 2
    again = restore(alone.path, alone.captured, Batch((ROWS,)))(ROWS)
    with torch.no_grad():
        for name, expected in alone.model(ROWS).items():
            assert torch.equal(again[name], expected), name


REFUSED = {
    "blocks in an integer kernel": (
        {"op": "conv", "weights": "int4", "block": 32},
        'no kernel for int4 weights, a scale for each 32 weights (rule 1: op = "conv", weights',
    ),
    "weights with a zero point": (
        {"op": "conv", "weights": "uint4"},
        'onnxruntime has no kernel for uint4 weights (rule 1: op = "conv", weights = "uint4")',
    ),
    "2 bits in blocks that run in float": (
        {"op": "linear", "as": "int2-weights", "block": 16},
        "onnxruntime has no kernel for weights only, uint2 weights, a scale for each 16 weights (",
    ),
    "a convolution": (
        {"op": "conv", "as": "int4-weights"},
        "int8 weights, input and result in float",
    ),
}


@pytest.mark.parametrize(("rule", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_kernel_takes_stays_in_float_and_says_so(rule: dict[str, Any], reason: str) -> None:
    plan = captured("residual_concat").plan(recipe=[rule])
    found = {d.reason for d in plan.nodes if d.op == rule["op"]}
    assert len(found) == 1
    assert reason in found.pop()
