"""Layers of a decoder that read one tensor are one layer."""

from __future__ import annotations

import pytest
import torch

from qtool.core import graph as G
from qtool.core.ops.attention import grouped_attention
from qtool.passes import FOR_FILES
from tests.passes.differential import Function, rewritten
from tests.passes.small_decoder import fused

NAMES = ("rotary", "rotary_attention", "packed_projections")
aten = torch.ops.aten


@pytest.mark.parametrize(("kind", "layers"), [("", 4), ("bias", 5)])
def test_layers_of_one_form_are_one_layer(kind: str, layers: int) -> None:
    module, counts = fused(*NAMES, kind=kind)
    assert counts["packed_projections"] == 2  # attention, and gate and up
    linear = [G.name_of(n) for n in G.calls(module.graph) if n.target is aten.linear.default]
    assert len(linear) == layers
    assert "projections.q+k" + "+v" * (not kind) in linear
    assert "gate+up" in linear
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    assert (node.args[1] is None) == (not kind)  # packed, or three tensors


def test_layers_outside_of_a_decoder_stay() -> None:
    def both(x: torch.Tensor, a: torch.nn.Module, b: torch.nn.Module) -> torch.Tensor:
        return torch.sigmoid(a(x)) * b(x)

    net = Function(both, *(torch.nn.Linear(4, 4) for _ in range(2)))
    found = rewritten(net, (3, 4), passes=[FOR_FILES["packed_projections"]])
    assert found.counts["packed_projections"] == 0
