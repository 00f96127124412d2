"""Calls made in place give the values of those that are not, and only where nobody else reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import qtool
from qtool.calibration.in_place_buffers import use_in_place_operators
from qtool.core import graph as G

aten = torch.ops.aten
Body = Callable[[nn.Module, torch.Tensor], object]


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.narrow, self.body = nn.Conv2d(3, 1, 1), body

    def forward(self, x: torch.Tensor) -> object:
        return self.body(self, x)


def _residual(net: nn.Module, x: torch.Tensor) -> object:
    y = net.first(x).relu()
    return (net.second(y) + y).relu()


CASES: dict[str, tuple[Body, int]] = {  # with how many calls in place
    "residual": (_residual, 3),
    "a clamp and a leaky relu": (
        lambda net, x: nn.functional.leaky_relu(net.second(nn.functional.relu6(net.first(x)))),
        2,
    ),
    "the input of the network": (lambda net, x: net.first(x.relu()), 0),
    "read again later": (lambda net, x: (y := net.first(x)).relu() + net.second(y), 0),
    "returned as well": (lambda net, x: ((y := net.first(x)), y.relu()), 0),
    "a view of it is read": (lambda net, x: (y := net.first(x)).relu() + y.flip(1).mT.mT, 0),
    "added to itself": (lambda net, x: (y := net.first(x)) + y, 1),
    "a sum that is wider": (lambda net, x: net.narrow(x) + net.second(x), 0),
    "a weight": (lambda net, x: net.first(x) * net.second.bias.relu()[:, None, None], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_the_same_and_calls_counted(name: str) -> None:
    body, expected = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    captured = qtool.capture_model(Net(body).eval(), x)
    graph, _ = captured.for_target("onnxruntime")
    module = G.clone(graph.module)
    use_in_place_operators(module)
    done = [n for n in G.calls(module.graph) if str(n.target).split(".")[-2].endswith("_")]
    assert len(done) == expected
    given = x.clone()
    with torch.inference_mode():
        for _ in range(2):  # twice: what it keeps must not change either
            found, wanted = module(given), graph.module(x)
            pairs = zip(*map(tree_leaves, (found, wanted)), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(given, x)
