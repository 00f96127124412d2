"""Attention rotates queries and keys itself where angles depend on positions alone."""

from __future__ import annotations

import pytest

from qtool.core import graph as G
from qtool.core.ops.attention import grouped_attention
from qtool.core.ops.rotary import rotary_embedding
from tests.passes.small_decoder import HEAD, POSITIONS, fused

NAMES = ("rotary", "rotary_attention")


def test_the_table_has_the_angles_of_all_positions() -> None:
    module, counts = fused(*NAMES)
    assert counts == {"rotary": 2, "rotary_attention": 1}
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    for table in node.args[7:9]:
        assert table.op == "get_attr"
        assert tuple(G.shape(table)) == (POSITIONS, HEAD // 2)
    names = {str(n.target) for n in G.calls(module.graph)}
    assert not {"aten.cos.default", "aten.transpose.int", "qtool.rotary.default"} & names


@pytest.mark.parametrize("kind", ["far", "narrow"])
def test_other_rotations_stay_operators(kind: str) -> None:
    module, _ = fused(*NAMES, kind=kind)
    (node,) = (n for n in G.calls(module.graph) if n.target is grouped_attention)
    assert node.args[7] is None
    rotations = [n for n in G.calls(module.graph) if n.target is rotary_embedding]
    assert len(rotations) == 2
