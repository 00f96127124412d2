"""Multiply-accumulates of one sample, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.ops import macs
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, run_passes
from tests.passes.differential import Function
from tests.planning.planned import canonical, network_plan

BY_HAND = {  # layer: outputs of one sample x products for each
    "residual": {
        "stem": 4 * 8 * 8 * (3 * 9),
        "conv1": 4 * 8 * 8 * (4 * 9),
        "conv2": 4 * 8 * 8 * (4 * 9),
        "head": 5 * 4,
    },
    "concat": {
        "stem": 4 * 36 * 3,
        "narrow": 2 * 36 * 4,
        "wide": 3 * 36 * 4 * 9,
        "last": 4 * 36 * 9,
    },
    "separable": {"0": 6 * 16 * 3 * 9, "3": 6 * 16 * 9, "6": 4 * 16 * 6},
    "transposed": {"0": 5 * 5 * 4 * 3 * 9, "3": 3 * 12 * 12 * 6},  # every input to 3 x 9 outputs
    "padded": {"1": 4 * (5 * 4) * 40, "7": 3 * 4},
    "signal": {"0": 4 * 12 * 2 * 5},
    "volume": {"0": 4 * 27 * 4 * 27},
    "linear_bn": {"0": 5 * 6, "3": 2 * 5},
    "mlp_3d": {"0": 7 * 5 * 6, "2": 7 * 2 * 5},
    "two_inputs": {"image_2": 4 * 16 * 3 * 9, "vector_2": 4 * 5},
}


@pytest.mark.parametrize("name", BY_HAND)
def test_networks(name: str) -> None:
    assert {d.node: d.macs for d in network_plan(name).nodes if d.macs} == BY_HAND[name]


@pytest.mark.parametrize("batch", [2, 7])
def test_the_captured_batch_does_not_matter(batch: int) -> None:
    graph = canonical(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (batch, 3, 6, 6))
    assert [macs(n, batch) for n in G.calls(graph)] == [4 * 16 * 27, 0]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        pytest.param(lambda x: x @ x.transpose(1, 2), 4 * 4 * 5, id="matmul"),
        pytest.param(lambda x: torch.bmm(x.transpose(1, 2), x), 5 * 5 * 4, id="bmm"),
        pytest.param(
            lambda x: F.scaled_dot_product_attention(x, x[:, :3], torch.ones(2, 3, 6)),
            4 * 3 * 5 + 4 * 3 * 6,
            id="attention",
        ),
        pytest.param(lambda x: x @ torch.ones(5, 3), 4 * 3 * 5, id="by a matrix"),
        pytest.param(lambda x: x @ torch.ones(5), 4 * 5, id="by a vector"),
    ],
)
def test_products(function: object, count: int) -> None:
    graph = capture_module(Function(function).eval(), Batch((torch.ones(2, 4, 5),)))
    run_passes(graph.module, CANONICAL)
    assert sum(macs(n, 2) for n in G.calls(graph.graph)) == count


CELLS = {"LSTMCell": 4, "GRUCell": 3, "RNNCell": 1}


@pytest.mark.parametrize("kind", CELLS)
def test_steps_of_recurrent_layers(kind: str) -> None:
    cell = getattr(nn, kind)(5, 6)
    state = torch.zeros(2, 6)
    given = (torch.ones(2, 5), (state, state) if kind == "LSTMCell" else state)
    graph = capture_module(cell.eval(), Batch(given))
    run_passes(graph.module, CANONICAL)
    assert sum(macs(n, 2) for n in G.calls(graph.graph)) == CELLS[kind] * 6 * (5 + 6)
