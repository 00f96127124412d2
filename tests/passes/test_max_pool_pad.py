"""Padding below all values before a max pool: the pool's own, or the border once more."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.frontends.captured_model import capture_model
from tests.backends.onnx.export.networks import Applied
from tests.named_cases import cases

aten = torch.ops.aten
X = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0)) - 5  # all below zero


def pooled(widths: list[int], kernel: int, stride: int, fill: float, dilation: int = 1) -> Applied:
    return Applied(
        lambda m, x: F.max_pool2d(F.pad(x, widths, value=fill), kernel, stride, 0, dilation)
    )


@pytest.mark.parametrize("fill", [-torch.inf, -1e30])
@cases(
    "widths, kernel, stride",
    ([1, 1, 1, 1], 3, 2),
    ([0, 1, 0, 1], 3, 2),
    ([0, 1, 0, 1], 2, 1),
    ([1, 0, 1, 0], 2, 1),
    ([2, 1, 1, 2], 3, 1),
    ([0, 2, 2, 0], 5, 3),
    ([2, 2, 2, 2], 3, 1),
)
def test_the_pad_is_gone_and_the_pool_gives_the_same(
    widths: list[int], kernel: int, stride: int, fill: float
) -> None:
    model = pooled(widths, kernel, stride, fill).eval()
    graph = capture_model(model, X).graph
    assert not any(n.target is aten.constant_pad_nd.default for n in G.calls(graph.graph))
    assert torch.equal(graph.module(X), model(X))
    assert torch.equal(graph.module(X[:1]), model(X[:1]))


def test_an_image_smaller_than_its_window() -> None:
    model, one = pooled([0, 1, 0, 2], 2, 3, -torch.inf, 1).eval(), X[:, :, :1, :1]
    graph = capture_model(model, one).graph
    assert torch.equal(graph.module(one), model(one))


def test_where_the_pool_can_say_it_nothing_else_is_left() -> None:
    graph = capture_model(pooled([0, 1, 1, 1], 3, 2, -torch.inf).eval(), X).graph
    assert [n.target for n in G.calls(graph.graph)][-1] is torch_ops.max_pool


@pytest.mark.parametrize(
    ("widths", "kernel", "dilation", "fill"),
    [([1, 1, 1, 1], 3, 1, 0.0), ([2, 2, 2, 2], 2, 3, -torch.inf), ([3, 3, 0, 0], 2, 1, -torch.inf)],
)
def test_what_decides_a_maximum_stays(
    widths: list[int], kernel: int, dilation: int, fill: float
) -> None:
    model = pooled(widths, kernel, 1, fill, dilation).eval()
    graph = capture_model(model, X).graph
    assert any(n.target is aten.constant_pad_nd.default for n in G.calls(graph.graph))
    assert torch.equal(graph.module(X), model(X))
