"""A quantized graph run again and again with some of its points switched off, and nothing computed
twice: what does not depend on a switched point is taken from an earlier run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool import graph as G
from qtool.data import Batch
from qtool.points import QuantPoint
from qtool.quantized import QuantizedModel

__all__ = ["Replay", "Values"]

Values = list[Any]
POINT_COST, ELEMENT_COST = 20, 6  # of one element, in MACs of a convolution: as measured, about


@dataclass(frozen=True, eq=False)
class _Step:
    """One node: how to compute it from the values of others, and what that costs a sample.

    arguments: with None at each place in `places`, which says whose value goes there. nested: lists
    of values among the arguments, by their place.
    """

    index: int
    arguments: tuple[Any, ...]
    places: tuple[tuple[int, int], ...]
    nested: tuple[int, ...]
    keywords: dict[str, Any]
    function: Callable[..., Any]
    point: str | None
    users: tuple[int, ...]
    cost: int


class Replay:
    """The graph of a quantized model as steps whose values are kept.

    A run is a list of values, one for each node. `points` names the points that are on; the others
    are the identity. All runs are without gradients.
    """

    def __init__(self, quantized: QuantizedModel) -> None:
        module = quantized.module
        nodes = list(module.graph.nodes)
        self.numbers = {G.name_of(n): i for i, n in enumerate(nodes)}
        self.inputs = [i for i, n in enumerate(nodes) if n.op == "placeholder"]
        self.outputs = [nodes.index(n) for n in G.output_nodes(module.graph) if G.is_float(n)]
        self.keywords = tuple(quantized.graph.example[1])
        self.constants: dict[int, Any] = {
            i: G.tensor(module, n).detach() for i, n in enumerate(nodes) if n.op == "get_attr"
        }
        index = {n: i for i, n in enumerate(nodes)}
        macs = {d.node: d.macs for d in quantized.plan.nodes}
        self.steps = {
            i: _step(module, n, index, macs) for i, n in enumerate(nodes) if n.op.startswith("call")
        }
        self.rounded = {  # constants behind their points, rounded once
            i: s.function(self.constants[s.places[0][1]])
            for i, s in self.steps.items()
            if s.point is not None and s.places[0][1] in self.constants
        }
        self.size = len(nodes)

    @torch.no_grad()
    def run(self, batch: Batch, points: Set[str]) -> Values:
        """All values of a run."""
        values: Values = [None] * self.size
        for i, constant in self.constants.items():
            values[i] = constant
        kwargs = {k: batch.kwargs[k] for k in self.keywords}
        leaves = pytree.tree_leaves((batch.args, kwargs))
        if len(leaves) != len(self.inputs):
            leaves = [leaf for leaf in leaves if leaf is not None]
        for i, leaf in zip(self.inputs, leaves, strict=True):
            values[i] = leaf
        for step in self.steps.values():
            values[step.index] = self._compute(step, values, points)
        return values

    @torch.no_grad()
    def again(self, values: Values, changed: Set[str], points: Set[str]) -> dict[int, Any]:
        """The values that differ from an earlier run, now that points are switched.

        Args:
            values: of that run. changed: points whose state is another now. points: those on now.
        """
        dirty = {i for i, s in self.steps.items() if s.point in changed}
        found, new = list(values), {}
        for i, step in self.steps.items():
            if i in dirty:
                found[i] = new[i] = self._compute(step, found, points)
                dirty.update(step.users)
        return new

    def cost(self, changed: Set[str] | None = None) -> int:
        """About what `again` costs for one sample, in MACs; None: a whole run."""
        if changed is None:
            return sum(s.cost for s in self.steps.values() if s.point is None)
        dirty = {i for i, s in self.steps.items() if s.point in changed}
        total = 0
        for i, step in self.steps.items():
            if i in dirty:
                total += step.cost
                dirty.update(step.users)
        return total

    def _compute(self, step: _Step, values: Values, points: Set[str]) -> Any:
        if step.point is not None:
            if step.point not in points:
                return values[step.places[0][1]]
            if step.index in self.rounded:
                return self.rounded[step.index]
        arguments = list(step.arguments)
        for place, index in step.places:
            arguments[place] = values[index]
        for place in step.nested:
            arguments[place] = _filled(arguments[place], values)
        if step.keywords:
            return step.function(*arguments, **_filled(step.keywords, values))
        return step.function(*arguments)


@dataclass(frozen=True)
class _Ref:
    """Stands for the value of a node."""

    index: int


def _filled(argument: Any, values: Values) -> Any:
    """Values in place of references, in lists and dicts too."""
    if isinstance(argument, _Ref):
        return values[argument.index]
    if isinstance(argument, list | tuple):
        return [_filled(a, values) for a in argument]
    if isinstance(argument, dict):
        return {k: _filled(a, values) for k, a in argument.items()}
    return argument


def _step(
    module: fx.GraphModule, node: fx.Node, index: dict[fx.Node, int], macs: dict[str, int]
) -> _Step:
    args: Any = _referring(node.args, index)
    places = tuple((i, a.index) for i, a in enumerate(args) if isinstance(a, _Ref))
    nested = tuple(i for i, a in enumerate(args) if isinstance(a, list | tuple))
    plain = tuple(None if isinstance(a, _Ref) else a for a in args)
    called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    point, cost = None, _elements(node) * ELEMENT_COST + macs.get(G.name_of(node), 0)
    if isinstance(called, QuantPoint):
        source = node.args[0]
        constant = isinstance(source, fx.Node) and source.op == "get_attr"
        point, cost = called.point, 0 if constant else _elements(node) * POINT_COST
    function: Any = called if called is not None else node.target
    users = tuple(index[u] for u in node.users if u.op != "output")
    keywords: Any = _referring(node.kwargs, index)
    return _Step(index[node], plain, places, nested, keywords, function, point, users, cost)


def _referring(arguments: Any, index: dict[fx.Node, int]) -> Any:
    """Arguments with references in place of nodes."""
    return pytree.tree_map_only(fx.Node, lambda n: _Ref(index[n]), arguments)


def _elements(node: fx.Node) -> int:
    """Elements of one sample at the captured sizes."""
    value = G.value(node)
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return 0
    return math.prod(G.hint(size) for size in value.shape[1:])
