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
from qtool.fake_quant import QuantPoint
from qtool.plan.macs import hint
from qtool.quantized import QuantizedModel

__all__ = ["Replay", "Values"]

Values = list[Any]
POINT_COST, ELEMENT_COST = 20, 6  # of one element, in MACs of a convolution: as measured, about


@dataclass(frozen=True, eq=False)
class _Step:
    """One node: how to compute it from the values of others, and what that costs a sample."""

    index: int
    arguments: tuple[Any, ...]
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
            i: s.function(*_filled(s.arguments, self.constants))
            for i, s in self.steps.items()
            if s.point is not None and s.arguments[0].index in self.constants
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
        found = _Overlay(values)
        for i, step in self.steps.items():
            if i in dirty:
                found.new[i] = self._compute(step, found, points)
                dirty.update(step.users)
        return found.new

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

    def _compute(self, step: _Step, values: Any, points: Set[str]) -> Any:
        if step.point is not None:
            if step.point not in points:
                return values[step.arguments[0].index]
            if step.index in self.rounded:
                return self.rounded[step.index]
        return step.function(*_filled(step.arguments, values), **_filled(step.keywords, values))


class _Overlay:
    """Values of an earlier run behind those computed since."""

    def __init__(self, old: Values) -> None:
        self.old = old
        self.new: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.new[index] if index in self.new else self.old[index]


@dataclass(frozen=True)
class _Ref:
    """Stands for the value of a node."""

    index: int


def _filled(arguments: Any, values: Any) -> Any:
    """Arguments with values for references; nested in lists only where an operator takes lists."""
    if isinstance(arguments, dict):
        return {k: _value(a, values) for k, a in arguments.items()} if arguments else {}
    return [_value(a, values) for a in arguments]


def _value(argument: Any, values: Any) -> Any:
    if isinstance(argument, _Ref):
        return values[argument.index]
    if isinstance(argument, list | tuple):
        return [_value(a, values) for a in argument]
    return argument


def _step(
    module: fx.GraphModule, node: fx.Node, index: dict[fx.Node, int], macs: dict[str, int]
) -> _Step:
    args: Any = _referring(node.args, index)
    kwargs: Any = _referring(node.kwargs, index)
    users = tuple(index[u] for u in node.users if u.op != "output")
    called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    cost = _elements(node) * ELEMENT_COST + macs.get(G.name_of(node), 0)
    if isinstance(called, QuantPoint):
        constant = isinstance(node.args[0], fx.Node) and node.args[0].op == "get_attr"
        cost = 0 if constant else _elements(node) * POINT_COST
        return _Step(index[node], tuple(args), {}, called, called.point, users, cost)
    function: Any = called if called is not None else node.target
    return _Step(index[node], tuple(args), dict(kwargs), function, None, users, cost)


def _referring(arguments: Any, index: dict[fx.Node, int]) -> Any:
    """Arguments with references in place of nodes."""
    return pytree.tree_map_only(fx.Node, lambda n: _Ref(index[n]), arguments)


def _elements(node: fx.Node) -> int:
    """Elements of one sample at the captured sizes."""
    value = G.value(node)
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return 0
    return math.prod(hint(size) for size in value.shape[1:])
