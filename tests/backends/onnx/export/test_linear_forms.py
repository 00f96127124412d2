"""Linear layers on integer weights: the operator of each form, and the codes that it reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qtool import QuantizedModel
from qtool.api.conversion import quantize
from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.packed_codes import unpack
from qtool.planning.fake_quantize import DynamicPoint, QuantPoint

INPUTS, OUTPUTS = 40, 24  # 40 is no multiple of a block of 32
FORMS = {
    "dynamic": torch_ops.dynamic_linear,
    "weight-only": torch_ops.gemm,
    "weight-only-int4": torch_ops.linear_nbits,
}


def made(mode: str) -> tuple[QuantizedModel, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, INPUTS)
    return quantize(nn.Sequential(nn.Linear(INPUTS, OUTPUTS)).eval(), [x], mode=mode), x


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
