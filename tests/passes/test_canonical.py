"""All passes in their order, on whole networks."""

from __future__ import annotations

import pytest

from qtool.core import graph as G
from qtool.passes import CANONICAL, run_passes
from tests.models.small import NETWORKS
from tests.passes.differential import assert_same, captured_network, op

REWRITES: dict[str, dict[str, int]] = {  # network: pass: rewrites
    "conv_bn_relu": {"canonicalize": 2, "fold_batch_norm": 1},
    "residual": {"canonicalize": 8, "fold_batch_norm": 3},
    "concat": {"canonicalize": 4},
    "separable": {"canonicalize": 7, "fold_batch_norm": 2},
    "transposed": {"canonicalize": 3, "fold_batch_norm": 1},
    "padded": {"remove_identity": 1, "canonicalize": 5, "fold_batch_norm": 1, "fold_pad": 1},
    "signal": {"canonicalize": 3, "fold_batch_norm": 1},
    "volume": {"canonicalize": 3, "fold_batch_norm": 1},
    "linear_bn": {"canonicalize": 1, "fold_batch_norm": 1},
    "mlp_3d": {"flatten_linear": 2},
    "nested_output": {},
    "keywords": {},
    "two_inputs": {"remove_identity": 1, "canonicalize": 1},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    network = NETWORKS[name]
    model, graph = captured_network(name)
    counts = run_passes(graph.module, CANONICAL)
    for size in (None, 5, 1):
        assert_same(model, graph.module, *network.example(size))
    assert {n: c for n, c in counts.items() if c} == REWRITES[name]
    assert not [n for n in G.calls(graph.graph) if op(n) in ("batch_norm", "dropout", "conv2d")]
    assert not any(run_passes(graph.module, CANONICAL).values()), "done once is done"
