"""Fusions of a decoder layer: rotary embedding in attention, packed layers, sums in norms."""

from __future__ import annotations

import pytest
import torch

from qtool.core import graph as G
from qtool.core.ops.attention import grouped_attention
from qtool.core.ops.norms import skip_rms_norm
from qtool.core.ops.rotary import rotary_embedding
from qtool.passes import FOR_FILES
from tests.passes.differential import Function, rewritten
from tests.passes.small_decoder import HEAD, POSITIONS, fused

ROTARY = ("rotary", "rotary_attention")
aten = torch.ops.aten


def test_the_table_has_the_angles_of_all_positions() -> None:
    module, counts = fused(*ROTARY)
    assert counts == {"rotary": 2, "rotary_attention": 1}
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    for table in node.args[7:9]:
        assert table.op == "get_attr"
        assert tuple(G.shape(table)) == (POSITIONS, HEAD // 2)
    names = {str(n.target) for n in G.calls(module.graph)}
    assert not {"aten.cos.default", "aten.transpose.int", "qtool.rotary.default"} & names


@pytest.mark.parametrize("kind", ["far", "narrow"])
def test_other_rotations_stay_operators(kind: str) -> None:
    module, _ = fused(*ROTARY, kind=kind)
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    assert node.args[7] is None
    rotations = [n for n in G.calls(module.graph) if n.target is rotary_embedding]
    assert len(rotations) == 2


@pytest.mark.parametrize(("kind", "layers"), [("", 4), ("bias", 5)])
def test_layers_of_one_form_are_one_layer(kind: str, layers: int) -> None:
    module, counts = fused(*ROTARY, "packed_projections", kind=kind)
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


def test_a_chain_of_sums() -> None:
    module, counts = fused("skip_rms_norm")
    assert counts == {"skip_rms_norm": 2}
    targets = [n.target for n in G.calls(module.graph)]
    assert targets.count(skip_rms_norm) == 2
    assert aten.rms_norm.default not in targets
    sums = [n for n in G.calls(module.graph) if n.target is aten.add.Tensor]
    assert not [n for n in sums if G.rank(n) == 3]
