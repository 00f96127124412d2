"""Graph passes, and the contract that every pass is checked against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PassError
from qtool.core.graph.float_tolerance import TOLERANCE, largest_distance
from qtool.core.value_names import unique

Match = TypeVar("Match")


@dataclass(frozen=True)
class GraphPass:
    """A rewrite that keeps the function of the graph.

    Attributes:
        name: name in plans and in the tables of targets.
        rewrite: edits the module in place and returns the number of rewrites.
        leftover: returns the first node that the pass should have removed, or None.
        reason: why a target wants it; the plan shows it.
        detail: returns what the plan adds to the reason, of the graph before the pass; "" for none.
    """

    name: str
    rewrite: Callable[[fx.GraphModule], int]
    leftover: Callable[[fx.GraphModule], fx.Node | None] = lambda _: None
    reason: str = ""
    detail: Callable[[fx.GraphModule], str] = lambda _: ""

    def reason_for(self, module: fx.GraphModule) -> str:
        """Return the reason with the detail of a graph that the pass has not run on."""
        return ": ".join(filter(None, (self.reason, self.detail(module))))


def pattern_pass(
    name: str,
    match: Callable[[fx.Node], Match | None],
    rewrite: Callable[[fx.GraphModule, fx.Node, Match], object],
    reason: str = "",
) -> GraphPass:
    """Return a pass that rewrites each call with a match; all are matched first.

    Args:
        name: see `GraphPass`.
        match: returns what `rewrite` needs of a call, or None or False.
        rewrite: takes the module, the call and its match.
        reason: see `GraphPass`.
    """

    def run(module: fx.GraphModule) -> int:
        matches = [(n, arguments) for n in G.calls(module.graph) if (arguments := match(n))]
        for node, arguments in matches:
            rewrite(module, node, arguments)
        return len(matches)

    return GraphPass(name, run, first_match(match), reason)


def first_match(match: Callable[[fx.Node], object]) -> Callable[[fx.GraphModule], fx.Node | None]:
    """Return a function that finds the first call with a match: the leftover of a pass."""
    return lambda module: next((n for n in G.calls(module.graph) if match(n)), None)


def run_passes(module: fx.GraphModule, passes: Sequence[GraphPass]) -> dict[str, int]:
    """Run the passes in order, in place; return the number of rewrites of each.

    After each pass the graph must be well formed, take the same inputs, return tensors of the same
    shapes and dtypes, have a fake value on every node, and contain no leftover of the pass.

    Raises:
        PassError: a pass failed or broke that contract.
    """
    counts: dict[str, int] = {}
    for each in passes:
        before = _interface(module)
        try:
            counts[each.name] = each.rewrite(module)
            if counts[each.name]:
                G.finish(module, recompile=False)
        except Exception as error:
            raise PassError(f"pass {each.name} failed: {error}") from error
        _check(module, each, before)
    _deduplicate_names(module.graph)
    module.recompile()
    return counts


def _deduplicate_names(graph: fx.Graph) -> None:
    """Rename a tensor that was folded for one use of a layer while another use reads the original:
    tensors are looked up by name, so names must be unique."""
    taken: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            name, target = G.name_of(node), str(node.target)
            if taken.setdefault(name, target) != target:
                node.meta[G.NAME] = name = unique(name, taken)
                taken[name] = target


def _check(module: fx.GraphModule, each: GraphPass, before: list[str]) -> None:
    if (after := _interface(module)) != before:
        raise PassError(f"pass {each.name} changed the interface from {before} to {after}")
    for node in module.graph.nodes:
        if node.op in ("call_function", "get_attr") and G.value(node) is None:
            raise PassError(f"pass {each.name} left node {G.name_of(node)} without a value")
    if (node := each.leftover(module)) is not None:
        raise PassError(f"pass {each.name} left {G.name_of(node)} ({node.target}) behind")


def _interface(module: fx.GraphModule) -> list[str]:
    nodes = [*G.placeholders(module.graph), *G.output_nodes(module.graph)]
    return [f"{tuple(G.value(n).shape)} {G.value(n).dtype}" for n in nodes]


def _finite_pairs(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements that are finite in both, if shapes and dtypes agree."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return a, b
    both = a.isfinite() & b.isfinite()
    return a[both], b[both]


def same_function(
    expected: Sequence[torch.Tensor],
    actual: Sequence[torch.Tensor],
    tolerance: float = TOLERANCE,
    noise: Callable[[], float] = lambda: 0.0,
) -> float:
    """Return the largest difference of two lists of outputs, relative to the range of each output.

    Args:
        expected: outputs of the model.
        actual: outputs of the rewritten graph.
        tolerance: relative to the range.
        noise: returns the float32 error of this network; called if `tolerance` is exceeded.

    Raises:
        PassError: the difference exceeds both.
    """
    where, difference = largest_distance(expected, actual)
    beyond = not all(bool(t.isfinite().all()) for t in expected)
    if difference == math.inf and beyond:
        # which sums overflow float32 depends on their order
        finite = zip(*map(_finite_pairs, expected, actual), strict=True)
        where, difference = largest_distance(*finite)
    if not difference <= tolerance and not difference <= (allowed := max(tolerance, noise())):
        if beyond:
            raise PassError(
                f"output {where} of the model has NaN or Inf, since its values exceed float32; "
                "where depends on the order of its sums: scale its weights or its data down"
            )
        raise PassError(
            f"the rewritten graph differs from the model in output {where} by {difference:.2g} of "
            f"its range (allowed: {allowed:.0e}); this is a bug in qtool, please report it"
        )
    return difference
