"""The tflite target: fixed parameters, and its integer program in the arithmetic of TFLite."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional as F

from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.core.types import SharedWith
from qtool.frontends.captured_model import capture_model
from qtool.planning.plan import Execution
from tests.passes.differential import Function
from tests.planning.targets.converted import converted, images, samples, written

FIXED = {"sigmoid": (1 / 256, -128), "tanh": (1 / 128, 0), "softmax": (1 / 256, -128)}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_outputs_stand_in_the_file(name: str) -> None:
    arrays = {
        i.name: numpy_helper.to_array(i) for i in written("activations", "tflite").graph.initializer
    }
    found = float(arrays[f"{name}.scale"]), int(arrays[f"{name}.zero_point"])
    assert found == FIXED[name]


def test_a_pool_has_the_parameters_of_its_input_and_takes_no_relu() -> None:
    pool = Function(
        lambda x, a, b: b(F.relu(F.avg_pool2d(a(x), 3, 1, 1, count_include_pad=False))),
        nn.Conv2d(3, 4, 1),
        nn.Conv2d(4, 4, 1),
    )
    plan = capture_model(pool.eval(), torch.randn(2, 3, 6, 6)).plan("tflite")
    assert plan.point("avg_pool2d").spec == SharedWith("parts.0")
    relu = plan.decision("relu")
    assert relu.execution is Execution.FLOAT  # the pool's own parameters do not clamp


def test_a_pool_whose_padding_counts_is_a_convolution_with_parameters_of_its_own() -> None:
    plan = converted("activations", "tflite").plan
    assert plan.decision("avg_pool2d").op == "conv"
    assert plan.point("relu").spec != SharedWith("third")


@pytest.mark.parametrize("name", ["residual_concat", "depthwise", "activations"])
def test_the_integer_program_is_near_fake_quantization(name: str) -> None:
    """All of it in kernels of the profile: each rounds by rules of its own, half a code from the
    exact value and at most one from fake quantization, and the layers behind carry that on."""
    x = samples(name)[:32]
    model = converted.__wrapped__(name, "tflite")  # not one that a test has exported
    program = model.integer()
    assert program.profile == "tflite"
    assert not program.float_nodes
    params = program.params[program.outputs[0]]
    with torch.no_grad():
        expected = params.quantize(model(x)).int()
    found = program(x)[0]
    apart = (found.int() - expected).abs()
    assert found.dtype == torch.int8
    assert float(expected.float().std()) > 2  # the outputs do differ
    assert int(apart.max()) <= 3
    assert float(apart.float().mean()) < 0.35


def test_a_fixed_output_with_other_parameters_is_no_integer_operator() -> None:
    file = onnx.ModelProto()
    file.CopyFrom(written("activations", "tflite"))
    (scale,) = (i for i in file.graph.initializer if i.name == "sigmoid.scale")
    scale.CopyFrom(numpy_helper.from_array(np.array(1 / 255, np.float32), scale.name))
    right = lower(written("activations", "tflite"), "tflite")
    assert not right.float_nodes
    wrong = lower(file, "tflite")
    assert [s.name for s in wrong.instructions if s.kind == "float"] == ["sigmoid"]


POOLS = {
    "padding in the mean": ({"stride": 1}, ""),
    "padding of SAME": ({"stride": 1, "count_include_pad": False}, ""),
    "other padding": (
        {"stride": 2, "count_include_pad": False},
        "TFLite's average pool cannot leave this padding out of the mean",
    ),
}


@pytest.mark.parametrize(("options", "reason"), POOLS.values(), ids=POOLS.keys())
def test_average_pools_that_the_kernel_does_not_know_stay_in_float(
    options: dict[str, Any], reason: str
) -> None:
    pool = Function(
        lambda x, conv: F.avg_pool2d(conv(x), 3, padding=1, **options), nn.Conv2d(3, 4, 1)
    )
    plan = capture_model(pool.eval(), torch.randn(2, 3, 6, 6)).plan("tflite")
    decision = plan.decision("avg_pool2d")
    assert decision.reason == reason


LEFT = {
    "a function whose output is not the fixed one": (
        lambda x: torch.softmax(x, 1),
        [{"op": "softmax", "as": "float"}],
    ),
    "a pool that is left in float": (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), None),
}


@pytest.mark.parametrize(("body", "recipe"), LEFT.values(), ids=LEFT.keys())
def test_the_program_leaves_in_float_what_the_kernels_cannot_do(body: Any, recipe: Any) -> None:
    """Between Q and DQ, with parameters that TFLite's kernels ignore or refuse."""
    model = Function(lambda x, a, b: b(body(a(x))), nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)).eval()
    x = images(8)
    quantized = quantize(model, [x], target="tflite", recipe=recipe, accuracy="fast")
    program = quantized.integer()
    assert program.float_nodes == 1
    (codes,) = program(x)
    params = program.params[program.outputs[0]]
    assert (params.dequantize(codes) - quantized(x)).abs().max() < 3.5 * params.scale
