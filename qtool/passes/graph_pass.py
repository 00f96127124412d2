"""What a pass is, and the contract every pass is held to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PassError
from qtool.core.graph.float_tolerance import TOLERANCE, largest_distance
from qtool.core.graph.unique_names import unique


@dataclass(frozen=True)
class GraphPass:
    """A rewrite that keeps the function of the graph.

    rewrite: edits the module in place and returns how many rewrites were made.
    leftover: the first node that the pass should have removed but did not, if any.
    reason: what it is good for, where that is a choice (a rewrite that a target asks for).
    far: whether what it looks at may be far apart, so that a part of the graph is not enough.
    """

    name: str
    rewrite: Callable[[fx.GraphModule], int]
    leftover: Callable[[fx.GraphModule], fx.Node | None] = lambda _: None
    reason: str = ""
    needs_whole_graph: bool = False


def run_passes(module: fx.GraphModule, passes: Sequence[GraphPass]) -> dict[str, int]:
    """Runs the passes in order, in place; returns the number of rewrites each made.

    After each pass the graph is well formed, takes the same inputs, returns tensors of the same
    shapes and dtypes, has a fake value on every node, and holds no leftover of the pass.

    Raises:
        PassError: a pass failed or broke that contract.
    """
    counts: dict[str, int] = {}
    for each in passes:
        before = _interface(module)
        try:
            counts[each.name] = each.rewrite(module)
            G.finish(module, recompile=False)
        except Exception as error:
            raise PassError(f"pass {each.name} failed: {error}") from error
        _check(module, each, before)
    _deduplicate_names(module.graph)
    module.recompile()
    return counts


def _deduplicate_names(graph: fx.Graph) -> None:
    """A tensor that was folded for one use of a layer, and what another use still reads, have two
    names: everything is found by its name."""
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
    """Where both are, if they are of one form."""
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
    """Largest difference between two lists of outputs, relative to the range of each output.

    Args:
        tolerance: relative to the range.
        noise: what float32 leaves open in this network; asked where it is not within tolerance.

    Raises:
        PassError: it is above what float32 allows.
    """
    where, difference = largest_distance(expected, actual)
    beyond = not all(bool(t.isfinite().all()) for t in expected)
    if difference == math.inf and beyond:
        # where sums go beyond float32 depends on their order
        finite = zip(*map(_finite_pairs, expected, actual), strict=True)
        where, difference = largest_distance(*finite)
    if not difference <= tolerance and not difference <= (allowed := max(tolerance, noise())):
        if beyond:
            raise PassError(
                f"output {where} of the model is NaN or Inf in places, since its values go beyond "
                "float32; which places depends on the order of its sums: scale its weights "
                "or its data down"
            )
        raise PassError(
            f"the rewritten graph differs from the model in output {where} by {difference:.2g} of "
            f"its range (allowed: {allowed:.0e}); this is a bug in qtool, please report it"
        )
    return difference
