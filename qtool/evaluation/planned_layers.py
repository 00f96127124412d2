"""Layers and plan of a quantized model, for a report on its file."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from torch import fx

from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.data import Batch, to_tensor
from qtool.core.errors import QtoolError
from qtool.core.ops import data_inputs, row_of
from qtool.core.progress import Bars
from qtool.core.quant_params import QuantParams
from qtool.core.types import Array, Requantized
from qtool.evaluation.measure.layer_errors import HistogramFacts
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.report.report import EdgeFact, PlanRow
from qtool.evaluation.sensitivity import measure_sensitivity
from qtool.planning.plan import Execution, Kind, QuantPlan
from qtool.verification import Coverage, planned_coverage


class PlannedLayers:
    """What the quantized model in torch says of a file next to what its runtime says."""

    def __init__(self, quantized: Quantized) -> None:
        self._quantized = quantized

    def planned_coverage(self) -> Coverage:
        """Return the coverage that the plan promises."""
        return planned_coverage(self._quantized.plan)

    def fields(
        self,
        batches: Sequence[Mapping[str, Array]],
        options: ReportOptions,
        bars: Bars,
    ) -> dict[str, Any]:
        """Return the fields of a report on layers and plan.

        Args:
            batches: the first batches, by the names of the inputs.
            options: budget of the measurement.
            bars: as for `build_report`.
        """
        quantized, layers, note = self._quantized, None, ""
        bar = bars("measuring layers", None)
        tensors = [Batch((), {n: to_tensor(a) for n, a in each.items()}) for each in batches]
        try:
            layers = measure_sensitivity(quantized, tensors, budget=options.budget, progress=bar)
        except QtoolError as error:
            note = str(error)
        measured = layers.layers if layers else ()
        return {
            "layers": layers,
            "layers_note": note,
            "edges": edge_facts(quantized, {e.tensor: e.activation for e in measured}),
            "notes": tuple(quantized.notes),
            "rewrites": quantized.plan.rewrites,
            "plan": plan_rows(quantized),
        }


def edge_facts(
    quantized: Quantized, histograms: Mapping[str, HistogramFacts | None]
) -> tuple[EdgeFact, ...]:
    """Return every input of every operator that joins several tensors.

    Args:
        histograms: per tensor, for the resolution lost by sharing a range.
    """
    plan, params = quantized.plan, quantized.parameters
    groups: dict[str, list[str]] = {}
    for point in plan:
        if point.kind is Kind.ACTIVATION:
            groups.setdefault(plan.root(point.name), []).append(point.name)
    facts = []
    for node in G.calls(quantized.graph.graph):
        decision = plan.decision(G.name_of(node)) if row_of(node) is not None else None
        sources = data_inputs(node) if decision is not None else []
        nodes = [s for s in sources if isinstance(s, fx.Node)]
        if decision is None or decision.execution is not Execution.INTEGER or len(nodes) < 2:
            continue
        result = _result(plan, node)
        for source in nodes:
            name = G.name_of(source)
            read = plan.reads.get((name, decision.node))
            root = plan.root(read) if read is not None else None
            facts.append(
                EdgeFact(
                    decision.node,
                    decision.op,
                    name,
                    _input_handling(decision.op, plan, read, result),
                    tuple(n for n in groups.get(root or "", ()) if n != name),
                    _scale(params, read or ""),
                    _scale(params, result or ""),
                    _lost_resolution(params.get(read or ""), histograms.get(name)),
                )
            )
    return tuple(facts)


def _result(plan: QuantPlan, node: fx.Node) -> str | None:
    """Return the point on the output of a node, after a clamp that is fused into it."""
    while G.name_of(node) not in plan:
        decided = [(u, plan.decision(G.name_of(u))) for u in node.users]
        users = [u for u, d in decided if d is not None and d.execution is Execution.FUSED]
        if not users:
            return None
        node = users[0]
    return G.name_of(node)


def _input_handling(op: str, plan: QuantPlan, source: str | None, result: str | None) -> str:
    """Return how the codes of a source enter the result (`EdgeFact.how`)."""
    if source is None or result is None:
        return "float" if source is None else "rescaled in the kernel"
    if isinstance(spec := plan.point(source).spec, Requantized):
        return f"requantized to {spec.qtype}"
    if plan.origin(source) == plan.origin(result):
        return "copied" if op == "concat" else "same scale"
    return "requantized" if op == "concat" else "rescaled in the kernel"


def _scale(params: Mapping[str, QuantParams], point: str) -> float | None:
    own = params.get(point)
    return float(own.scale) if own is not None and own.axis is None else None


def _lost_resolution(params: QuantParams | None, histogram: HistogramFacts | None) -> float | None:
    if params is None or histogram is None or params.axis is not None:
        return None
    own = (max(histogram.most, 0.0) - min(histogram.least, 0.0)) / params.qtype.levels
    return math.log2(float(params.scale) / own) if own > 0 else None


def plan_rows(quantized: Quantized) -> tuple[PlanRow, ...]:
    """Return the nodes of the plan in order of computation."""
    graph, plan = quantized.graph.graph, quantized.plan
    nodes = {G.name_of(n): n for n in G.calls(graph)}
    values = {G.name_of(n) for n in G.placeholders(graph)}
    values |= {d.node for d in plan.nodes if d.execution is not Execution.SHAPE}
    return tuple(
        PlanRow(*row, tuple(dict.fromkeys(_sources(nodes[d.node], values))), d.macs)
        for row, d in zip(plan.rows(), plan.nodes, strict=True)
    )


def _sources(node: fx.Node, values: Set[str]) -> Iterator[str]:
    """Yield the tensors that a node reads, also out of a tuple; sizes and constants are none."""
    for source in node.all_input_nodes:
        if G.name_of(source) in values:
            yield G.name_of(source)
        elif source.target is operator.getitem:
            yield from _sources(source, values)
