"""Plans of small models, and a short form of them to compare with."""

from functools import cache

import torch
from torch import fx, nn

from qtool.core.data import Batch
from qtool.core.types import ObserverSpec, SharedWith
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import CANONICAL, run_passes
from qtool.planning.plan import Kind, QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.targets import Target, target
from tests.models.small import settle
from tests.passes.differential import captured_network

MINMAX = ObserverSpec("minmax")


def canonical(model: nn.Module, *shapes: tuple[int, ...]) -> fx.Graph:
    graph = capture_module(settle(model), Batch(tuple(torch.randn(s) for s in shapes)))
    run_passes(graph.module, CANONICAL)
    return graph.graph


def plan(model: nn.Module, *shapes: tuple[int, ...], on: Target | None = None) -> QuantPlan:
    return make_plan(canonical(model, *shapes), on or target("onnxruntime"), MINMAX)


@cache  # plans are pure, and so are graphs that nobody edits
def network_graph(name: str) -> fx.Graph:
    _, graph = captured_network(name)
    run_passes(graph.module, CANONICAL)
    return graph.graph


@cache
def network_plan(name: str) -> QuantPlan:
    return make_plan(network_graph(name), target("onnxruntime"), MINMAX)


def table(plan: QuantPlan) -> list[str]:
    """`node: op form -> point`: "own" parameters, "as" those of another point, or "float"."""

    def output(name: str | None) -> str:
        if name is None:
            return "float"
        spec = plan.point(name).spec
        return f"as {spec.point}" if isinstance(spec, SharedWith) else "own"

    return [f"{d.node}: {d.op} {d.execution.value} -> {output(d.output)}" for d in plan.nodes]


def reads(plan: QuantPlan) -> dict[str, list[str]]:
    """Activation points -> who reads them in codes."""
    return {p.name: sorted(e.user for e in p.edges) for p in plan if p.kind is Kind.ACTIVATION}
