"""Arguments of nodes have the type that is asked for, or the node is named."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from qtool.core import graph as G

aten = torch.ops.aten


@pytest.fixture
def nodes() -> tuple[fx.Node, fx.Node]:
    """A concatenation along dimension 1, and a pad of what it computes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    cat = graph.call_function(aten.cat.default, ([x, x], 1))
    return cat, graph.call_function(aten.constant_pad_nd.default, (cat, [0, 2], 0.5))


def test_each_type(nodes: tuple[fx.Node, fx.Node]) -> None:
    cat, pad = nodes
    assert G.sources(cat) == [cat.all_input_nodes[0]] * 2
    assert (G.integer(cat, 1), G.number(cat, 1), G.number(pad, 2)) == (1, 1.0, 0.5)
    assert G.source(pad) is cat
    assert G.integers(pad, 1) == G.items(pad, 1) == [0, 2]
    assert [a.name for a in G.schema(cat).arguments] == ["tensors", "dim"]
    x = torch.ones(1, 2)
    assert torch.equal(G.run_operator(cat, ([x, x],), {"dim": 0}), torch.ones(2, 2))


def test_another_type_is_a_bug(nodes: tuple[fx.Node, fx.Node]) -> None:
    _, pad = nodes
    for read, index in ((G.source, 1), (G.sources, 1), (G.integer, 2), (G.number, 1), (G.items, 0)):
        with pytest.raises(AssertionError, match="constant_pad_nd"):
            read(pad, index)
