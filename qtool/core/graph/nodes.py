"""Reading a graph: names and values of nodes; arguments are in `arguments`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core.value_names import NODE_NAME

Shape = tuple[Any, ...]
"""Sizes: numbers, and SymInts of dimensions that stay open."""

NAME = NODE_NAME
"""The key of a node's readable name in its meta."""

FOLDED_PAD = "folded_pad"
"""The key of the pads that a convolution took over from an operator of its own: begins, then ends,
of each spatial dimension."""

MERGED_GROUPS = "merged_groups"
"""The key of how many groups of a convolution were merged into one, with zeros between them."""

KEPT_FORM = "kept_form"
"""The key of the form for which a part was kept from a file: "clip", "auto_pad = SAME_UPPER"."""

OTHER_READS = "other_reads"
"""The key of how many calls in other blocks read a stored tensor."""

OUTPUT = "(output)"
"""The name of the output node; a layer may be called `output`."""


def name_of(node: fx.Node) -> str:
    """Return the node's readable, unique name ("layer1.0.conv2"); OUTPUT for the output node."""
    if node.op == "output":
        return OUTPUT
    return str(node.meta.get(NAME, node.name))


def value(node: fx.Node) -> Any:
    """Return the node's fake value: a FakeTensor, a number or a SymInt."""
    return node.meta.get("val")


def is_float(node: object) -> bool:
    """Return whether this is a node with a floating-point tensor."""
    return (
        isinstance(node, fx.Node)
        and isinstance(value(node), torch.Tensor)
        and value(node).is_floating_point()
    )


def is_tensor(node: fx.Node) -> bool:
    return isinstance(value(node), torch.Tensor)


def rank(node: fx.Node) -> int:
    return int(value(node).dim())


def shape(node: fx.Node) -> Shape:
    return tuple(value(node).shape)


def hint(size: Any) -> int:
    """Return a size as a number; of a symbolic one that of the capture, or 1 if unknown."""
    if isinstance(size, torch.SymInt):
        captured = size.node.hint
        return int(captured) if captured is not None else 1
    return int(size)


def captured_batch(graph: fx.Graph) -> int:
    """Return the number of samples that a graph was captured with: the first size of its first
    input; 1 without one."""
    first = next((n for n in graph.nodes if n.op == "placeholder"), None)
    sizes = () if first is None else shape(first)
    return hint(sizes[0]) if sizes else 1


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two shapes are equal for all sizes of their dynamic dimensions."""
    return [str(size) for size in a] == [str(size) for size in b]


def tensor(module: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """Return the parameter, buffer or constant of a get_attr node."""
    assert node.op == "get_attr", node.format_node()
    attribute: Any = module
    for part in str(node.target).split("."):
        attribute = getattr(attribute, part)
    assert isinstance(attribute, torch.Tensor)
    return attribute


def calls(graph: fx.Graph) -> Iterable[fx.Node]:
    """Return the call_function nodes in order, as a list: the graph may be edited meanwhile."""
    return [n for n in graph.nodes if n.op == "call_function"]


def attribute_reads(graph: fx.Graph) -> Counter[str]:
    """Return how many calls read each attribute of the module (parameter, buffer, constant), also
    in the graph that this one is a part of."""
    stored = [n for n in graph.nodes if n.op == "get_attr"]
    reads = Counter(str(n.target) for n in stored for _ in n.users)
    reads.update({str(n.target): n.meta[OTHER_READS] for n in stored if OTHER_READS in n.meta})
    return reads


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """Return the input tensors of a graph, without arguments that were None at capture."""
    return [n for n in graph.nodes if n.op == "placeholder" and value(n) is not None]


def output_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that a graph returns, flat and in order."""
    return [n for n in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(n, fx.Node)]
