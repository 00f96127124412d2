"""Forms of linear layers, their ranks and shapes."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

from qtool import QuantizedModel, capture_model
from qtool.api.conversion import quantize
from qtool.backends.onnx.export import float_onnx
from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.packed_codes import unpack
from qtool.planning.fake_quantize import DynamicPoint, QuantPoint
from tests.backends.onnx.export.networks import Applied


class Heads(nn.Module):
    """A layer whose result is turned into heads, and two with an activation between."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.query(x).view(x.shape[0], x.shape[1], 4, 16).transpose(1, 2)
        x = self.down(nn.functional.silu(self.up(x)))
        means = x.view(x.shape[0], x.shape[1], 4, 16).mean(2).transpose(1, 2)
        return torch.matmul(heads.sin().sum(1), means)


@pytest.mark.parametrize("mode", ["weight-only-int4", "dynamic"])
def test_only_heads_are_reshaped(mode: str) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(2, 5, 64) for _ in range(2)]
    quantized = quantize(
        Heads().eval(), batches, mode=mode, dynamic={"x": {0: "batch", 1: "time"}}, recover=[]
    )
    found = Counter(n.op_type for n in quantized.to_onnx().graph.node)
    assert (found["Reshape"], found["Shape"]) == (2, 0), found
    assert quantized.verify().passed


def test_integer_gemms_stay_flat() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(2, 5, 64) for _ in range(2)]
    quantized = quantize(
        Heads().eval(), batches, dynamic={"x": {0: "batch", 1: "time"}}, accuracy="fast"
    )
    found = Counter(n.op_type for n in quantized.to_onnx().graph.node)
    assert found["Gemm"] == 3
    assert found["Reshape"] > 3


INPUTS, OUTPUTS = 40, 24  # 40 is no multiple of a block of 32
FORMS = {
    "dynamic": torch_ops.dynamic_linear,
    "weight-only": torch_ops.gemm,
    "weight-only-int4": torch_ops.linear_nbits,
}


def made(mode: str) -> tuple[QuantizedModel, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, INPUTS)
    return quantize(
        nn.Sequential(nn.Linear(INPUTS, OUTPUTS)).eval(), [x], mode=mode, accuracy="fast"
    ), x


def attributes(module: Any) -> dict[str, torch.Tensor]:
    nodes = (n for n in module.graph.nodes if n.op == "get_attr")
    return {G.name_of(n): G.tensor(module, n) for n in nodes}


@pytest.mark.parametrize("mode", list(FORMS))
def test_a_layer_becomes_the_operator_of_its_form(mode: str) -> None:
    quantized, x = made(mode)
    lowered = quantized.qdq
    called = [n for n in G.calls(lowered.graph) if n.target is FORMS[mode]]
    assert [G.name_of(n) for n in called] == ["0"]
    kinds = (DynamicPoint, QuantPoint)
    assert not any(isinstance(m, kinds) for m in lowered.modules())
    torch.testing.assert_close(lowered(x), quantized(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["dynamic", "weight-only"])
def test_int8_codes_stand_in_the_order_of_the_kernel(mode: str) -> None:
    quantized, _ = made(mode)
    stored, params = attributes(quantized.qdq), quantized.parameters["0.weight"]
    weight = quantized.module.get_parameter("0.weight").detach()
    assert stored["0.weight.codes"].shape == (INPUTS, OUTPUTS)
    assert torch.equal(stored["0.weight.codes"], params.quantize(weight).t())
    assert torch.equal(stored["0.weight.scale"], params.scale)


def test_4_bit_codes_are_packed_in_whole_blocks() -> None:
    quantized, _ = made("weight-only-int4")
    stored, params = attributes(quantized.qdq), quantized.parameters["0.weight"]
    assert params.block == 32
    packed = stored["0.weight.codes"]
    assert packed.shape == (OUTPUTS, 2, 16)
    codes = unpack(packed.flatten(1), 64, 4)
    weight = quantized.module.get_parameter("0.weight").detach()
    expected = params.quantize(weight).to(torch.int64) - params.qtype.qmin
    assert torch.equal(codes[:, :INPUTS].to(torch.int64), expected)
    assert not codes[:, INPUTS:].any()


SIZES = ("Shape", "Concat", "Squeeze", "Gather")


def written(function: Callable[[torch.Tensor], torch.Tensor]) -> onnx.ModelProto:
    """Of [batch, time, 12], both dynamic; shown to be right at other sizes."""
    captured = capture_model(
        Applied(lambda _, x: function(x)).eval(),
        torch.randn(2, 5, 12),
        {"x": {0: "batch", 1: "time"}},
    )
    model = float_onnx(captured.graph)
    session = ort.InferenceSession(model.SerializeToString())
    for sizes in ((2, 5), (1, 1), (3, 7)):
        x = torch.randn(*sizes, 12)
        (found,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(found, function(x).numpy(), rtol=1e-6, atol=1e-6)
    return model


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


KEPT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads": lambda x: x.view(x.shape[0], x.shape[1], 3, 4).transpose(1, 2),
    "heads joined": lambda x: (
        x.view(x.shape[0], x.shape[1], 3, 4).sin().reshape(x.shape[0], x.shape[1], 12)
    ),
    "repeated": lambda x: x[:, None].expand(x.shape[0], 4, x.shape[1], 12).cos(),
    "one left over": lambda x: x.transpose(1, 2).reshape(x.shape[0], -1, 3).exp(),
}


@pytest.mark.parametrize("name", KEPT)
def test_no_size_is_computed(name: str) -> None:
    found = operators(written(KEPT[name]))
    assert not any(found[kind] for kind in SIZES), found


def test_what_is_computed_is_computed_once() -> None:
    def crossed(x: torch.Tensor) -> torch.Tensor:
        swapped = x.reshape(x.shape[1], x.shape[0], 12) + 1
        return swapped.cos().reshape(x.shape[0] * x.shape[1], 12).reshape(x.shape[1], -1, 12) * 2

    assert operators(written(crossed))["Shape"] <= 2  # one for each size


def test_an_empty_tensor_keeps_its_zero() -> None:
    model = written(lambda x: torch.cat([x, x.new_zeros(0, 12).reshape(x.shape[0], 0, 12)], 1))
    assert operators(model)


NEGATIVE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half rounded up": lambda x: x[:, : -(-x.shape[1] // 2)],
    "of a difference": lambda x: x + (1 - x.shape[1]) // 2,
    "by a negative size": lambda x: x + 7 * x.shape[1] // (-1 - x.shape[1]),
    "what is left": lambda x: x + -x.shape[1] % 3,
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_sizes_are_divided_as_in_python(name: str) -> None:
    """Down, not towards zero."""
    written(NEGATIVE[name])
