"""All passes in their order, on whole networks."""

from __future__ import annotations

import pytest

from qtool import graph as G
from qtool.passes import CANONICAL, run_passes
from tests.models.small import NETWORKS
from tests.passes.differential import assert_same, captured_network, op

REWRITES = {  # name: rewrites by (identity, recurrent, canonicalize, norm, pad, linear)
    "conv_bn_relu": (0, 0, 2, 1, 0, 0),
    "residual": (0, 0, 8, 3, 0, 0),
    "concat": (0, 0, 4, 0, 0, 0),
    "separable": (0, 0, 7, 2, 0, 0),
    "transposed": (0, 0, 2, 1, 0, 0),
    "padded": (1, 0, 5, 1, 1, 0),
    "signal": (0, 0, 2, 1, 0, 0),
    "volume": (0, 0, 3, 1, 0, 0),
    "linear_bn": (0, 0, 1, 1, 0, 0),
    "mlp_3d": (0, 0, 0, 0, 0, 2),
    "nested_output": (0, 0, 0, 0, 0, 0),
    "keywords": (0, 0, 0, 0, 0, 0),
    "two_inputs": (1, 0, 1, 0, 0, 0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    network = NETWORKS[name]
    model, graph = captured_network(name)
    counts = run_passes(graph.module, CANONICAL)
    for size in (None, 5, 1):
        assert_same(model, graph.module, *network.example(size))
    assert tuple(counts.values()) == REWRITES[name]
    assert not [n for n in G.calls(graph.graph) if op(n) in ("batch_norm", "dropout", "conv2d")]
    assert not any(run_passes(graph.module, CANONICAL).values()), "done once is done"
