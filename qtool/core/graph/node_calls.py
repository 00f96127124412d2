"""The calls that an executor makes: nodes of a graph with references to the values they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core import graph as G

Values = list[Any]
"""The value of each node of a graph, by index; None if it is not computed."""

POINT_COST, ELEMENT_COST = 20, 6  # measured, per element, in MACs of a convolution


@dataclass(frozen=True, eq=False)
class Call:
    """One node: how it is computed from the values of others, and the cost.

    Attributes:
        index: position of the node in the graph.
        arguments: positional arguments, None at the positions in `operands`.
        operands: (position, index of the node whose value goes there).
        nested: positions of lists that hold values.
        keywords: keyword arguments, with references to values.
        function: what is called: the operator or the submodule.
        point: name of the quantization point; None for other nodes.
        users: indices of the nodes that read the result.
        reads: indices of the nodes that it reads.
        cost: MACs of one sample.
        elements: elements of the result for one sample.
    """

    index: int
    arguments: tuple[Any, ...]
    operands: tuple[tuple[int, int], ...]
    nested: tuple[int, ...]
    keywords: dict[str, Any]
    function: Callable[..., Any]
    point: str | None
    users: tuple[int, ...]
    reads: tuple[int, ...]
    cost: int
    elements: int


@dataclass(frozen=True)
class _Ref:
    """A reference to the value of a node."""

    index: int


def fill(argument: Any, values: Values) -> Any:
    """Replace references by values, in lists and dicts too."""
    if isinstance(argument, _Ref):
        return values[argument.index]
    if isinstance(argument, list | tuple):
        return [fill(a, values) for a in argument]
    if isinstance(argument, dict):
        return {k: fill(a, values) for k, a in argument.items()}
    return argument


def call_of(
    module: fx.GraphModule, node: fx.Node, index: dict[fx.Node, int], macs: Mapping[str, int]
) -> Call:
    args: Any = _refer(node.args, index)
    submodule = G.submodule(module, node)
    elements = _elements(node)
    point, cost = None, elements * ELEMENT_COST + macs.get(G.name_of(node), 0)
    if submodule is not None and hasattr(submodule, "point"):
        source = node.args[0]
        is_constant = isinstance(source, fx.Node) and source.op == "get_attr"
        point, cost = str(submodule.point), 0 if is_constant else elements * POINT_COST
    keywords: Any = _refer(node.kwargs, index)
    function: Any = node.target if submodule is None else submodule
    return Call(
        index=index[node],
        arguments=tuple(None if isinstance(a, _Ref) else a for a in args),
        operands=tuple((i, a.index) for i, a in enumerate(args) if isinstance(a, _Ref)),
        nested=tuple(i for i, a in enumerate(args) if isinstance(a, list | tuple)),
        keywords=keywords,
        function=function,
        point=point,
        users=tuple(index[u] for u in node.users if u.op != "output"),
        reads=tuple(index[n] for n in node.all_input_nodes),
        cost=cost,
        elements=elements,
    )


def _refer(arguments: Any, index: dict[fx.Node, int]) -> Any:
    """Replace nodes by references."""
    return pytree.tree_map_only(fx.Node, lambda n: _Ref(index[n]), arguments)


def _elements(node: fx.Node) -> int:
    """Return the number of elements per sample at the captured sizes."""
    value = G.value(node)
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return 0
    return math.prod(G.hint(size) for size in value.shape[1:])
