"""Arguments and targets of nodes by the type that their operator declares: fx types each as any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """Return an argument by its position or name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def source(node: fx.Node, index: int = 0) -> fx.Node:
    """Return the node that computes an argument, which is no number."""
    value = node.args[index]
    assert isinstance(value, fx.Node), node.format_node()
    return value


def sources(node: fx.Node, index: int = 0) -> list[fx.Node]:
    """Return the nodes that compute an argument, a list of tensors."""
    nodes = items(node, index)
    assert all(isinstance(each, fx.Node) for each in nodes), node.format_node()
    return nodes


def integer(node: fx.Node, index: int) -> int:
    """Return an argument that is an integer, known when the graph is captured."""
    value = node.args[index]
    assert isinstance(value, int), node.format_node()
    return value


def number(node: fx.Node, index: int) -> float:
    """Return an argument that is a number, known when the graph is captured."""
    value = node.args[index]
    assert isinstance(value, int | float), node.format_node()
    return float(value)


def integers(node: fx.Node, index: int) -> list[int]:
    """Return an argument that is a list of integers, known when the graph is captured."""
    return [int(each) for each in items(node, index)]


def items(node: fx.Node, index: int) -> list[Any]:
    """Return an argument that is a list, of numbers or of nodes that compute them."""
    value = node.args[index]
    assert isinstance(value, Sequence), node.format_node()
    return list(value)


def submodule(module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """Return the module that a node calls; None if it calls an operator or is no call."""
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None


def run_operator(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a node's operator on other arguments."""
    assert callable(node.target), node.format_node()
    return node.target(*args, **kwargs)


def schema(node: fx.Node) -> torch.FunctionSchema:
    """Return the schema of a node's operator: names and types of its arguments."""
    assert isinstance(node.target, torch._ops.OpOverload), node.format_node()
    return node.target._schema
