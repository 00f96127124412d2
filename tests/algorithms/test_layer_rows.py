"""Rows and matrices of a layer multiply to what the layer computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.layer_rows import (
    as_matrix,
    as_weight,
    input_mean,
    input_rows,
    input_sums,
    is_product,
    output_rows,
    row_weights,
)
from qtool.core import graph as G

LAYERS = {
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 9)),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), padding=(2, 1), dilation=(2, 1)), (4, 7, 6)),
    "groups": (nn.Conv2d(4, 8, 3, groups=2), (4, 6, 6)),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 5, 5)),
    "conv3d": (nn.Conv3d(2, 3, 2), (2, 4, 4, 3)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1), (4, 5, 4)),
    "transposed groups": (
        nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (0, 1), (1, 2), groups=2, dilation=2),
        (4, 3, 4),
    ),
    "transposed 1d": (nn.ConvTranspose1d(3, 2, 2, padding=1), (3, 6)),
    "linear": (nn.Linear(5, 3), (5,)),
    "linear on tokens": (nn.Linear(5, 3), (2, 5)),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_the_product_is_what_the_layer_computes(name: str) -> None:
    layer, shape = LAYERS[name]
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    graph = qtool.capture_model(nn.Sequential(layer).eval(), x).graph
    node = next(n for n in G.calls(graph.graph) if is_product(n))
    weight = G.tensor(graph.module, node.args[1]).detach()
    matrix = as_matrix(node, weight)
    assert torch.equal(as_weight(node, matrix, weight.shape), weight)
    with torch.no_grad():
        expected = layer(x) - (0 if layer.bias is None else _along(layer.bias, layer(x), name))
    for most in (10**6, 2):
        found = input_rows(node, x, most) @ matrix.mT  # [groups, rows, out / groups]
        assert torch.allclose(found, output_rows(node, expected, most), atol=1e-5)
    assert input_rows(node, x, 2).shape[1] == 2
    if "linear" in name:
        gains = [
            torch.rand(part.shape[:-1], generator=torch.Generator().manual_seed(1))
            for part in x.split(2)
        ]
        counts = torch.cat([g.flatten() for g in gains]).double()
        rows = x.reshape(-1, x.shape[-1]).double()
        parts = [input_sums(node, *each) for each in zip(x.split(2), gains, strict=True)]
        assert torch.allclose(input_mean(node, parts)[0], counts @ rows / counts.sum())
        assert torch.equal(row_weights(gains[0], 10**6), gains[0].flatten())
    every = input_rows(node, x, 10**6).double().mean(1)
    parts = [input_sums(node, each) for each in x.split(2)]
    assert torch.allclose(input_mean(node, parts), every, atol=1e-6)


def _along(bias: torch.Tensor, y: torch.Tensor, name: str) -> torch.Tensor:
    return bias if "linear" in name else bias.reshape(-1, *[1] * (y.dim() - 2))
