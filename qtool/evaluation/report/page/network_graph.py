"""The network as a graph for the report: what each box shows, and the modules of a large network.

A box is a node of the plan with its measurements. Above MAX_NODES boxes the graph shows modules,
each with a graph of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qtool.core.number_texts import count, db, percent
from qtool.evaluation.report.report import Report

MAX_NODES = 200
MAX_MODULE = 60  # nodes of a module that is shown as one box
KINDS = {
    "integer": "integer",
    "dynamic": "integer",
    "pass": "pass",
    "fused": "fused",
    "weights": "weights",
    "float": "float",
}
"""Execution in the plan -> class of a box; executions that are not here have none."""

INPUT = "input"


@dataclass(frozen=True)
class Box:
    """A box of the graph: a node, an input, or a module with all its nodes.

    Attributes:
        name: full name of the node or module.
        kinds: class of every node in it.
        cost: time or MACs.
        share: share of the output error; of a module, the sum.
        facts: what is known about it, a line each.
        link: id of the element of the page that has more.
    """

    name: str
    kinds: tuple[str, ...]
    cost: float
    share: float
    facts: tuple[str, ...]
    link: str

    @property
    def is_module(self) -> bool:
        return len(self.kinds) > 1


@dataclass(frozen=True)
class NetworkGraph:
    """Boxes in order of computation, and which reads which.

    Attributes:
        title: module that the graph shows; "" for the whole network.
        edges: (source, reader) by the names of boxes.
        cost: what the width of a box shows: "time" or "MACs".
        modules: graphs of the modules that are boxes here.
    """

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, str], ...]
    cost: str
    modules: tuple[NetworkGraph, ...] = ()


def anchors(report: Report) -> dict[str, str]:
    """Return the id of the table row of each layer, or of its row in the plan."""
    layers = report.layers.layers if report.layers else ()
    rows = {row.node: f"plan-{i}" for i, row in enumerate(report.plan)}
    return rows | {e.name: f"layer-{i}" for i, e in enumerate(layers)}


def module_anchor(name: str, modules: Sequence[str]) -> str:
    """Return the id of the graph of a module."""
    return f"module-{modules.index(name)}"


def network_graph(report: Report) -> NetworkGraph | None:
    """Return the graph of the plan, or None for a report without one."""
    boxes, cost = _boxes(report)
    if len(boxes) < 2:
        return None
    edges = [(s, row.node) for row in report.plan if row.node in boxes for s in row.inputs]
    if len(boxes) <= MAX_NODES:
        return NetworkGraph("", tuple(boxes.values()), tuple(edges), cost)
    module = group_by_module(list(boxes))
    members: dict[str, list[Box]] = {}
    for name, box in boxes.items():
        members.setdefault(module[name], []).append(box)
    names = [name for name, inside in members.items() if len(inside) > 1]
    overview = tuple(
        inside[0] if name not in names else _module_box(name, inside, names)
        for name, inside in members.items()
    )
    between = dict.fromkeys((module[a], module[b]) for a, b in edges if module[a] != module[b])
    graphs = tuple(_module_graph(name, members[name], edges, cost) for name in names)
    return NetworkGraph("", overview, tuple(between), cost, graphs)


def group_by_module(names: Sequence[str]) -> dict[str, str]:
    """Return the module to show for each node: the outermost with at most MAX_MODULE nodes.

    A node without such a module is shown itself.
    """
    sizes = Counter(prefix for name in names for prefix in _prefixes(name))
    return {
        name: next((p for p in _prefixes(name) if 1 < sizes[p] <= MAX_MODULE), name)
        for name in names
    }


def _prefixes(name: str) -> list[str]:
    """Return the modules around a node, outermost first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _boxes(report: Report) -> tuple[dict[str, Box], str]:
    """Return a box for each input and node of the plan, and what costs are."""
    rows = [row for row in report.plan if row.form in KINDS]
    nodes = {row.node for row in rows}
    inputs = dict.fromkeys(s for row in rows for s in row.inputs if s not in nodes)
    layers = {e.name: e for e in report.layers.layers} if report.layers else {}
    reliable = report.profile is not None and not report.profile.differs
    times = {n.name: n for n in report.profile.nodes} if report.profile and reliable else {}
    timed = any(times[name].microseconds[-1] > 0 for name in nodes & times.keys())
    links = anchors(report)
    boxes = {
        name: Box(name, (INPUT,), 0.0, 0.0, ("input",), links.get(name, "")) for name in inputs
    }
    for row in rows:
        layer, time = layers.get(row.node), times.get(row.node)
        microseconds = time.microseconds if time else ()
        facts = [f"{row.op}, {row.form}; output: {row.output}"]
        facts += [f"{count(row.macs)} MACs"] if row.macs else []
        if any(microseconds):
            facts += [f"{microseconds[0]:.0f} µs in float, {microseconds[-1]:.0f} µs quantized"]
        if layer is not None:
            share = percent(layer.only_share, 1)
            facts += [f"own SQNR {db(layer.alone_db)} dB, {share} of the output error"]
        facts += [row.reason] if row.reason else []
        boxes[row.node] = Box(
            row.node,
            (KINDS[row.form],),
            float(microseconds[-1] if timed and microseconds else 0 if timed else row.macs),
            layer.only_share if layer else 0.0,
            tuple(facts),
            links[row.node],
        )
    return boxes, "time" if timed else "MACs"


def _module_box(name: str, inside: Sequence[Box], modules: Sequence[str]) -> Box:
    kinds = Counter(kind for box in inside for kind in box.kinds)
    share = sum(box.share for box in inside)
    worst = max(inside, key=lambda box: box.share)
    facts = [f"{len(inside)} nodes: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items())]
    if worst.share:
        facts.append(f"most sensitive: {worst.name}, {percent(worst.share, 1)} of the output error")
    cost = sum(box.cost for box in inside)
    all_kinds = tuple(kind for box in inside for kind in box.kinds)
    return Box(name, all_kinds, cost, share, tuple(facts), module_anchor(name, modules))


def _module_graph(
    name: str, inside: Sequence[Box], edges: Iterable[tuple[str, str]], cost: str
) -> NetworkGraph:
    """Return the graph of one module, with the tensors that come in from outside."""
    members: Mapping[str, Box] = {box.name: box for box in inside}
    within = tuple((a, b) for a, b in edges if b in members)
    outside = dict.fromkeys(a for a, _ in within if a not in members)
    inputs = tuple(Box(a, (INPUT,), 0.0, 0.0, ("from another module",), "") for a in outside)
    return NetworkGraph(name, (*inputs, *inside), within, cost)
