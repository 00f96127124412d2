"""Layers in the order in which they give up their codes: the largest error for its cost first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np

from qtool.algorithms.comparable_pairs import compared_nodes
from qtool.algorithms.error_sources import (
    IN_CODES,
    ErrorSource,
    error_sources,
    errors_alone,
    stored_weights,
    work_in_codes,
)
from qtool.conversion.quantized import Quantized
from qtool.conversion.trained_weights import unrounded_executor
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import PlanError
from qtool.core.progress import track
from qtool.core.types import Array, Observed
from qtool.planning import targets
from qtool.planning.fake_quantize import quant_points
from qtool.planning.plan import Execution, Kind, QuantPlan
from qtool.planning.recipe import Recipe
from qtool.planning.speed.slow_layers import plan_time
from qtool.plugins.search.choices import layers_of, rules_of

FORMS = IN_CODES | {Execution.DYNAMIC}
_FLOAT_BITS = 32


@dataclass(frozen=True, eq=False)
class Ranking:
    """Quantized tensors of a model with the layers around them.

    Attributes:
        recipe: the recipe of the model.
        sources: tensors, those whose layers leave their precision first at the front.
        layers: names of the layers that can be chosen.
        costs: what each source costs in float: work, or stored weights.
        low: precision of the layers in the model; "" if it is that of the recipe.
    """

    recipe: Recipe
    sources: tuple[ErrorSource, ...]
    layers: frozenset[str]
    costs: tuple[float, ...]
    low: str = ""

    @cached_property
    def left(self) -> Array:
        """[sources + 1] error that is left with the first sources gone, as a share."""
        shares = np.array([s.share for s in self.sources])
        left: Array = np.append(np.cumsum(shares[::-1])[::-1], 0.0)
        left /= max(left[0], 1e-30)
        return left

    def recipe_at(self, count: int, high: str) -> Recipe:
        """Return the recipe with the layers of the first sources in another precision."""
        first = dict.fromkeys(n for s in self.sources[:count] for n in sorted(s.nodes))
        rest = dict.fromkeys(n for s in self.sources for n in sorted(s.nodes) if n not in first)
        low = rules_of(rest, self.layers, self.low) if self.low else ()
        rules = (*self.recipe.rules, *low, *rules_of(first, self.layers, high))
        return replace(self.recipe, rules=rules)

    def is_close(self, low: int, high: int) -> bool:
        """Return whether no cost to speak of is between two numbers of sources."""
        return high - low <= 1 or sum(self.costs[low:high]) < CLOSE * sum(self.costs)

    def share_of(self, layer: str) -> float:
        """Return the error of the tensors around a layer, as a share of that of all."""
        own = sum(s.share / len(s.nodes) for s in self.sources if layer in s.nodes)
        return float(own / max(sum(s.share for s in self.sources), 1e-30))


CLOSE = 0.02  # of the cost of all layers


def candidates_of(model: Quantized, recipe: Recipe, globs: Sequence[str], by_size: bool) -> Ranking:
    """Return the tensors of a model without their errors.

    Args:
        model: a quantized model.
        recipe: its recipe, with the rules that steps added.
        globs: layers that match the same one have the same precision.
        by_size: a layer costs its weights, not its work.

    Raises:
        PlanError: every layer is fixed by a rule, or a glob selects none.
    """
    plan, graph = model.plan, model.graph.graph
    captured = {G.name_of(n) for n in G.calls(model.captured.for_target(plan.target)[0].graph)}
    sources = list(error_sources(plan, set(quant_points(model.module)), captured, FORMS))
    layers = frozenset(d.node for d in layers_of(plan)) & {n for s in sources for n in s.nodes}
    if not layers:
        raise PlanError("nothing to search: every quantized layer is fixed by a recipe rule")
    groups = [frozenset(n for n in layers if fnmatchcase(n, glob)) for glob in globs]
    for glob, group in zip(globs, groups, strict=True):
        if not group:
            raise PlanError(f"the group '{glob}' selects no layer of the search space")
    sources = [replace(s, nodes=_closure(s.nodes, groups)) for s in sources]
    stored, work = stored_weights(graph, plan), work_in_codes(graph, plan)

    def cost(name: str) -> float:
        return float(stored.get(name, 0) if by_size else work.get(name) or stored.get(name, 0))

    costs = tuple(sum(map(cost, s.nodes)) for s in sources)
    return Ranking(recipe, tuple(sources), layers, costs)


def _closure(nodes: frozenset[str], groups: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return nodes with those of every group that they touch."""
    return nodes.union(*(group for group in groups if group & nodes))


def ranked(ranking: Ranking, model: Quantized, batches: Sequence[Batch]) -> Ranking:
    """Return the tensors in the order of their errors alone, for their cost.

    Args:
        ranking: the tensors.
        model: the model whose error they make.
        batches: samples, as the graph takes them.
    """
    run = unrounded_executor(model)
    chunks = track("errors of single tensors", batches, len(batches))
    sources = [replace(s, points=s.points & run.points) for s in ranking.sources]
    errors = errors_alone(run, compared_nodes(run.graph), chunks, sources)
    measured = [replace(s, share=e) for s, e in zip(sources, errors, strict=True)]
    costs = {s.nodes: c for s, c in zip(sources, ranking.costs, strict=True)}
    least = max(1.0, CLOSE * sum(ranking.costs) / len(sources))
    measured.sort(key=lambda s: s.share / max(least, costs[s.nodes]), reverse=True)
    moves: list[ErrorSource] = []
    spent: list[float] = []
    covered: frozenset[str] = frozenset()
    for source in measured:
        if moves and source.nodes & ranking.layers <= covered:  # its layers have moved already
            last = moves[-1]
            nodes, share = last.nodes | source.nodes, last.share + source.share
            moves[-1] = replace(last, nodes=nodes, share=share)
        else:
            moves.append(source)
            spent.append(costs[source.nodes])
            covered |= source.nodes
    return replace(ranking, sources=tuple(moves), costs=tuple(spent))


def predicted_cost(model: Quantized, plan: QuantPlan, by_size: bool) -> tuple[float, float]:
    """Return what decides between the precisions of all layers: nanoseconds by the table of costs
    of the target (MACs in float, where it has none), and bits of weights that are
    not stored, as a negative number; these come first for the size.
    """
    graph, costs = model.graph.graph, targets.target(plan.target).costs
    time = float(sum(d.macs for d in plan.nodes if not d.computes_on_codes))
    if costs is not None:
        time = plan_time(graph, plan, costs)
    nodes = {G.name_of(n): n for n in graph.nodes}
    saved = sum(
        (_FLOAT_BITS - p.spec.qtype.bits) * G.value(nodes[p.edges[0].source]).numel()
        for p in plan
        if p.kind is Kind.WEIGHT and isinstance(p.spec, Observed)
    )
    return (-saved, time) if by_size else (time, -saved)
