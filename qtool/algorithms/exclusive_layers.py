"""Layers that a step may change the weights and biases of, since nobody else reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import fx

from qtool.algorithms.layer_rows import is_product
from qtool.algorithms.pipeline import ConversionState
from qtool.core import graph as G
from qtool.core.types import QuantParams
from qtool.planning.plan import Kind


def exclusive_layers(state: ConversionState) -> dict[str, fx.Node]:
    """Layers whose weights are in codes and, like their biases, belong to them alone; by name."""
    graph = state.graph.graph
    uses = Counter(str(n.target) for n in graph.nodes if n.op == "get_attr" for _ in n.users)
    points = {p.edges[0].user for p in state.plan if p.kind is Kind.WEIGHT and p.edges}
    return {
        G.name_of(node): node
        for node in G.calls(graph)
        if is_product(node)
        and G.name_of(node) in points
        and all(
            uses[attribute_name(node, at)] == 1
            for at in (1, 2)
            if at < len(node.args) and isinstance(node.args[at], fx.Node)
        )
    }


def constant_node(node: fx.Node, at: int) -> fx.Node:
    """The constant that a layer has as this argument: 1 its weights, 2 its bias."""
    source = node.args[at]
    assert isinstance(source, fx.Node)
    return source


def attribute_name(node: fx.Node, at: int) -> str:
    """Where the module holds the constant of `source_of`."""
    return str(constant_node(node, at).target)


def constant_value(state: ConversionState, node: fx.Node, at: int) -> torch.Tensor:
    """The values of the constant of `source_of`, on the CPU."""
    return G.tensor(state.graph.module, constant_node(node, at)).detach().cpu()


def point_params(state: ConversionState, point: str) -> QuantParams:
    """The parameters of a point, which are solved."""
    assert state.parameters is not None
    return state.parameters.params[point]


def with_constants(state: ConversionState, values: Mapping[str, torch.Tensor]) -> ConversionState:
    """The conversion with other values of constants, by where its module holds them.

    Raises:
        KeyError: there is none of such a name. ValueError: one has another shape.
    """
    module = G.clone(state.graph.module)
    held = {str(n.target): n for n in module.graph.nodes if n.op == "get_attr"}
    for name, value in values.items():
        if G.tensor(module, held[name]).shape != value.shape:
            raise ValueError(f"'{name}' has another shape")
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and str(node.target) in values:
            G.set_tensor(module, node, values[str(node.target)])
    return replace(state, graph=replace(state.graph, module=module))
