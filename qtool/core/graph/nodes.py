"""Reading a graph: what a node is called, what it yields, what it was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

NAME = "qtool_name"
"""The key of a node's readable name in its meta."""

OUTPUT = "(output)"
"""What the graph returns to, among the names of its nodes; a layer may be called `output`."""


def name_of(node: fx.Node) -> str:
    """The node's readable, unique name ("layer1.0.conv2"); of what the graph returns `OUTPUT`."""
    if node.op == "output":
        return OUTPUT
    return str(node.meta.get(NAME, node.name))


def value(node: fx.Node) -> Any:
    """The node's fake value: a FakeTensor for tensors, a number or SymInt otherwise."""
    return node.meta.get("val")


def is_float(node: object) -> bool:
    """Whether the node yields a floating-point tensor."""
    return (
        isinstance(node, fx.Node)
        and isinstance(value(node), torch.Tensor)
        and value(node).is_floating_point()
    )


def is_tensor(node: fx.Node) -> bool:
    return isinstance(value(node), torch.Tensor)


def rank(node: fx.Node) -> int:
    return int(value(node).dim())


def shape(node: fx.Node) -> tuple[Any, ...]:
    return tuple(value(node).shape)


def hint(size: Any) -> int:
    """A size as a number; a symbolic one has the value it was captured with."""
    if isinstance(size, torch.SymInt):
        found = size.node.hint
        return int(found) if found is not None else 1
    return int(size)


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are equal, whatever the sizes of their dynamic dimensions."""
    return [str(size) for size in a] == [str(size) for size in b]


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument given by position or by name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def tensor(module: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """The parameter, buffer or constant behind a get_attr node."""
    assert node.op == "get_attr", node.format_node()
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    assert isinstance(found, torch.Tensor)
    return found


def calls(graph: fx.Graph) -> Iterable[fx.Node]:
    """The call_function nodes, in order; safe while editing."""
    return [n for n in graph.nodes if n.op == "call_function"]


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """The tensors that a graph is given; not what was None when it was captured, and stays so."""
    return [n for n in graph.nodes if n.op == "placeholder" and value(n) is not None]


def output_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The nodes a graph returns, flattened, in order."""
    return [n for n in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(n, fx.Node)]
