"""The quantized tensors of a network as sources of its error: what each adds alone, and the layers
that have to compute in float for it to be gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import fx

from qtool.algorithms.comparable_pairs import worst_error
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph.executor import Executor
from qtool.core.output_evidence import Evidence
from qtool.planning.plan import Execution, Kind, Point, QuantPlan
from qtool.planning.recipe.rule import REGEX
from qtool.planning.speed.costs import elements

ELEMENT_WORK = 8
"""Work of an element that a node computes, in multiply-accumulates."""

IN_CODES = frozenset({Execution.INTEGER, Execution.PASS, Execution.WEIGHTS, Execution.FUSED})
"""Forms of a node that keep the tensors around it in codes."""


@dataclass(frozen=True)
class ErrorSource:
    """A quantized tensor that is a source of error.

    Attributes:
        points: points of the tensor, which share their parameters.
        nodes: nodes that have to compute in float for it to be in float.
        share: error that it makes alone, as a share of the error of the whole network.
        is_weight: it is no activation.
    """

    points: frozenset[str]
    nodes: frozenset[str]
    share: float = 0.0
    is_weight: bool = False


def error_sources(
    plan: QuantPlan,
    points: Set[str],
    names: Set[str],
    forms: Set[Execution] = IN_CODES,
) -> Iterator[ErrorSource]:
    """Yield the quantized tensors between nodes that no rule selects and no step added.

    Args:
        plan: a plan.
        points: points of the network.
        names: nodes that no step added.
        forms: how nodes run that keep a tensor in codes.
    """
    rules = [r for r in plan.recipe.rules if r.changes_scheme]
    free = {d.node for d in plan.nodes if not any(r.selects(d.node, d.op) for r in rules)} & names
    groups: dict[str, list[Point]] = {}
    for point in plan:
        if point.name in points and point.kind is not Kind.BIAS:
            root = plan.root(point.name) if point.kind is Kind.ACTIVATION else point.name
            groups.setdefault(root, []).append(point)
    for group in groups.values():
        around = {e.user for p in group for e in p.edges}
        around |= {p.tensor for p in group if p.kind is Kind.ACTIVATION}
        decisions = (plan.decision(name) for name in around)
        nodes = frozenset(d.node for d in decisions if d is not None and d.execution in forms)
        if nodes and nodes <= free:
            is_weight = all(p.kind is Kind.WEIGHT for p in group)
            yield ErrorSource(frozenset(p.name for p in group), nodes, is_weight=is_weight)


def errors_alone(
    run: Executor,
    compared: Mapping[str, Evidence],
    batches: Iterable[Batch],
    sources: Sequence[ErrorSource],
) -> list[float]:
    """Return the relative squared error of the outputs that each source makes alone.

    Args:
        run: executor of the quantized network.
        compared: the nodes that it is compared by.
        batches: samples, as the graph takes them.
        sources: the quantized tensors.
    """
    pairs: list[list[tuple[list[torch.Tensor], list[torch.Tensor]]]] = [[] for _ in sources]
    indices = [run.indices[name] for name in compared]
    for batch in batches:
        values = run.run(batch, frozenset())
        real = [values[i] for i in indices]
        for each, source in zip(pairs, sources, strict=True):
            new = run.rerun_changed(values, source.points, source.points)
            each.append((real, [new[i] if i in new else values[i] for i in indices]))
    return [worst_error(each, list(compared.values())) for each in pairs]


def work_in_codes(graph: fx.Graph, plan: QuantPlan) -> Mapping[str, float]:
    """Return the work of each node for one sample; 0 of those that compute in float already."""
    batch, work = G.captured_batch(graph), {}
    for node in G.calls(graph):
        name = G.name_of(node)
        decision = plan.decision(name)
        if decision is None or decision.execution is Execution.WEIGHTS or not G.is_float(node):
            work[name] = 0
        else:
            work[name] = decision.macs + ELEMENT_WORK * elements(node, batch)
    return work


def stored_weights(graph: fx.Graph, plan: QuantPlan) -> Mapping[str, int]:
    """Return layer -> number of its weights."""
    nodes = {G.name_of(n): n for n in graph.nodes}
    edges = [e for p in plan if p.kind is Kind.WEIGHT for e in p.edges]
    return {e.user: G.value(nodes[e.source]).numel() for e in edges}


def exact_selector(name: str) -> str:
    """Return a selector of a rule that matches only this name."""
    return REGEX + re.escape(name) if set(name) & set("*?[") or name.startswith(REGEX) else name
