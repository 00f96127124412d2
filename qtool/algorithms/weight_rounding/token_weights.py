"""Weight of each row (token) of a layer in its reconstruction error: its effect on the outputs.

All positions of an image are equally important, but tokens are not: a padded one reaches no output,
and compensating what a few large ones lose by clipping would cost all the others. As in
`gradient_sensitivity`, outputs are multiplied by random signs and run backwards. The weight of a
row is the fourth root of the squared gradient, averaged over the layer's results (rows weighted by
derivatives are also how Kim et al. 2025, GuidedQuant, round). Squared gradients differ so much from
row to row that a layer would be fitted to few rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import run_backwards
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.file_parts import nodes_before_parts

MAX_SQUARE = (
    1e30  # beyond, or no number: behind a norm of what does not vary; rows then count equally
)

aten = torch.ops.aten


def token_weights(
    graph: FloatGraph,
    batches: Sequence[Batch],
    layers: Collection[fx.Node],
    needed: Collection[int] | None = None,
) -> Mapping[str, Mapping[int, torch.Tensor]]:
    """Return row weights of the linear layers with several rows per sample.

    Args:
        needed: numbers of the batches to return, by default all.

    Returns:
        layer -> number of a batch -> float32 [*rows], without layers in front of parts of a file;
        empty where an operator has no derivative.
    """
    before = nodes_before_parts(graph.graph)
    names = {G.name_of(n) for n in layers if _has_tokens(graph, n) and n not in before}
    if not names:
        return {}
    weights: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    run = _Run(G.on_device(graph.module, graph.device), weights)
    inputs = [graph.tensors_of(b.to(graph.device)) for b in batches]
    try:
        ran = run_backwards(run, inputs, needed)
    except RuntimeError:
        return {}
    complete = ((name, each) for name, each in weights.items() if len(each) == len(ran))
    return {name: dict(zip(ran, each, strict=True)) for name, each in complete}


def _has_tokens(graph: FloatGraph, layer: fx.Node) -> bool:
    """Return whether a linear layer has more rows than samples, at the captured sizes."""
    rows = math.prod(G.hint(size) for size in G.shape(layer)[:-1])
    samples = [len(t) for t in graph.tensors_of(Batch(*graph.example)) if t.dim()]
    return layer.target is aten.linear.default and rows > max(samples, default=1)


class _Run(fx.Interpreter):
    """Runs a graph and collects the squared gradients of some results in the backward pass."""

    def __init__(self, module: fx.GraphModule, weights: Mapping[str, list[torch.Tensor]]) -> None:
        super().__init__(module)
        self.weights = weights

    def run_node(self, n: fx.Node) -> Any:
        value, name = super().run_node(n), G.name_of(n)
        if n.op == "get_attr":
            return value.detach()
        if name not in self.weights:
            return value

        def add(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                size = torch.linalg.vector_norm(gradient, dim=-1)  # no tensor of squares
                squares = (size.square() / gradient.shape[-1]).cpu()
                finite = squares.sum() < MAX_SQUARE
                self.weights[name].append(
                    squares.sqrt().sqrt() if finite else torch.ones_like(squares)
                )

        value = value if value.requires_grad else value.detach().requires_grad_()
        value.register_hook(add)
        return value
