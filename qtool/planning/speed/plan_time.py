"""Predicted time of a whole plan, by a table of costs."""

from __future__ import annotations

from torch import fx

from qtool.core import graph as G
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.speed.costs import CostTable, sizes_in_file
from qtool.planning.speed.slow_layers import Times

_ON_CODES = frozenset({Execution.INTEGER, Execution.PASS, Execution.FUSED})


def plan_time(graph: fx.Graph, plan: QuantPlan, table: CostTable) -> float:
    """Return nanoseconds of one sample: nodes, and conversions between codes and floats.

    Layers that the table does not describe take the time of its products.
    """
    batch, calls = G.captured_batch(graph), list(G.calls(graph))
    made = [n for n in (*G.placeholders(graph), *calls) if n.users and G.is_float(n)]
    decisions = {n: plan.decision(G.name_of(n)) for n in (*made, *calls)}
    labels = {n: d is not None and d.execution in _ON_CODES for n, d in decisions.items()}
    stored = sizes_in_file(graph, table, {n for n, on_codes in labels.items() if on_codes})
    nodes, kernels = {}, (table.in_float, table.in_integers)
    for node in calls:
        decision, times = decisions[node], table.node(node, batch)
        if decision is not None and decision.macs and times == (0.0, 0.0):
            in_float, in_codes = (t["call"] + t["mac"] * decision.macs for t in kernels)
            times = in_float, in_codes
        in_integers = table.convolution(stored[node])[True] if node in stored else times[True]
        nodes[node] = times[False], in_integers
    return Times(nodes, {n: table.edge(n, batch) for n in made}).total(labels)
