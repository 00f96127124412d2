"""Rows of a layer are centred only where its bias restores the mean result."""

from __future__ import annotations

import pytest
import torch

import qtool
from qtool.algorithms.layer_rows import is_product
from qtool.algorithms.weight_rounding.layer_samples import LayerSamples, slice_batch
from qtool.core import graph as G


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_keep_their_mean_without_a_bias(bias: bool, weighted: bool) -> None:
    layer = torch.nn.Linear(3, 2, bias=bias).eval()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)) + 5
    graph = qtool.capture_model(layer, x).graph
    (node,) = [n for n in G.calls(graph.graph) if is_product(n)]
    target = layer(x).detach()
    weights = torch.ones(8) if weighted else None
    rows = LayerSamples(node, [slice_batch(node, x, target, weights, 8)]).rows(holdout=False)
    assert rows is not None
    for centred, exact in zip(rows, (x, target), strict=True):
        expected = exact - exact.mean(0) if bias else exact
        assert torch.allclose(centred[0], expected, atol=1e-5)
