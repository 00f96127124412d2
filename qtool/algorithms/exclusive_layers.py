"""Layers whose weights and biases a step may change, since no other node reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import fx

from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.layer_rows import is_product
from qtool.core import graph as G
from qtool.core.types import QuantParams
from qtool.planning.plan import Kind


def exclusive_layers(state: ConversionState) -> dict[str, fx.Node]:
    """Return the layers with quantized weights whose constants no other node reads, by name."""
    graph = state.graph.graph
    reads = G.attribute_reads(graph)
    points = {p.edges[0].user for p in state.plan if p.kind is Kind.WEIGHT and p.edges}
    return {
        G.name_of(node): node
        for node in G.calls(graph)
        if is_product(node)
        and G.name_of(node) in points
        and all(
            reads[attribute_name(node, at)] == 1
            for at in (1, 2)
            if at < len(node.args) and isinstance(node.args[at], fx.Node)
        )
    }


def constant_node(node: fx.Node, at: int) -> fx.Node:
    """Return the node of a layer's constant; `at` is 1 for the weight, 2 for the bias."""
    source = node.args[at]
    assert isinstance(source, fx.Node)
    return source


def attribute_name(node: fx.Node, at: int) -> str:
    """Return the attribute of the module that holds the constant of `constant_node`."""
    return str(constant_node(node, at).target)


def constant_value(state: ConversionState, node: fx.Node, at: int) -> torch.Tensor:
    """Return the value of the constant of `constant_node`, on the CPU."""
    return G.tensor(state.graph.module, constant_node(node, at)).detach().cpu()


def point_params(state: ConversionState, point: str) -> QuantParams:
    """Return the solved parameters of a point."""
    assert state.parameters is not None
    return state.parameters.params[point]


def with_constants(state: ConversionState, values: Mapping[str, torch.Tensor]) -> ConversionState:
    """Return the state with new constants, by attribute of the module.

    Raises:
        KeyError: no such attribute.
        ValueError: one has another shape.
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
