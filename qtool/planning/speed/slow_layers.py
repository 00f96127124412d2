"""The convolutions that a plan leaves in float because integers make their chain slower.

A node is in float or in integers, which takes its time; a tensor between the two is quantized or
dequantized, which takes time, too. The choice with the least sum is a minimum cut of a network in
which nodes on the side of the source are in integers (Ishikawa and Geiger's construction for two
labels; a tensor that several nodes read has an edge of its own, so that it is converted once).
The time of a whole plan is that sum, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

import networkx as nx
import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import Role, row_of
from qtool.planning.node_decisions import NodeDecisions
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.speed.costs import CostTable, sizes_in_file

aten = torch.ops.aten

REASON = "faster in float, by the table of costs"
"""Why a layer stays in float. Its gain is a prediction, so no number of it is shown."""

LEAST_GAIN = 1.1
"""Predicted gain over all layers in integers from which layers stay in float. Sums of the table are
off by a tenth in the median; other CPUs differ more."""

WIN = 1.15
"""Factor by which integers have to be faster than float, so that they win on other CPUs, too."""

LEAST_SHARE = 0.9
"""Float time over that of integers from which a layer stays in integers unless its kernel alone is
far slower there (`FAR`). Whole networks gain more than the sum of their layers: measured,
MobileNets between 0.92 and 1.14 were faster in integers than with layers in float, by up to 0.15 at
batch 1 and 0.1 to 0.3 at batch 16, where tensors of floats leave the caches. Below 0.8 layers in
float pay."""

FAR, FAR_GAIN = 1.6, 1.5
"""How many times as long a kernel takes in integers, and the predicted gain, from which layers of
such a network leave them: long kernels over one channel do. Predicted gains of less were losses:
1.26 of MixNet-S was 0.80, 1.38 of EfficientNet-B0 0.88, 1.44 of MobileViT-XS 0.93 (AVX2, batch 1).
"""

FIRST_GAIN = 1.05
"""Predicted gain from which the first layer of such a network leaves integers. With it go the
rounding of the input, its channel of zeros and its change of layout, and a hard-swish that the
float kernel computes with its results."""

LEAST_TIME = 20_000
"""Nanoseconds of the network in integers below which nothing is changed: calls are most of it."""

_SWISH = (torch_ops.rescale, aten.add.Tensor, aten.clamp.default, aten.mul.Tensor)
_IMAGES = 4  # dimensions of a batch of images
_Label = bool
"""True: in integers."""


@dataclass(frozen=True)
class Times:
    """Nanoseconds of nodes in float and in integers, and of conversions between the two.

    Attributes:
        nodes: node -> time in float and in integers; a node without an entry runs in float.
        edges: node -> time to convert its result.
        fixed: nodes that run in integers in any case.
    """

    nodes: Mapping[fx.Node, tuple[float, float]]
    edges: Mapping[fx.Node, float]
    fixed: frozenset[fx.Node] = frozenset()

    def total(self, labels: Mapping[fx.Node, _Label]) -> float:
        """Return the time of a choice for every node."""
        nodes = sum(self.nodes[n][label] for n, label in labels.items() if n in self.nodes)
        return nodes + sum(time for n, time in self.edges.items() if _converts(n, labels))

    def cheapest(self) -> dict[fx.Node, _Label]:
        """Return the choice with the least time, in which integers win by `WIN`."""
        network = nx.DiGraph()
        for node, (in_float, in_integers) in self.nodes.items():
            kept = {} if node in self.fixed else {"capacity": round(in_float)}
            network.add_edge("integer", node, **kept)  # without a capacity it is not cut
            network.add_edge(node, "float", capacity=round(WIN * in_integers))
        for node, time in self.edges.items():
            if node not in self.nodes:
                network.add_edge(node, "float")
            for user in node.users:
                network.add_edge((node, "in codes"), user)
                network.add_edge(user, (node, "in floats"))
                if user not in self.nodes:
                    network.add_edge(user, "float")
            network.add_edge(node, (node, "in codes"), capacity=round(time))
            network.add_edge((node, "in floats"), node, capacity=round(time))
        _, (integers, _) = nx.minimum_cut(network, "integer", "float")
        return {node: node in integers for node in (*self.nodes, *self.edges)}


def slow_layers(state: NodeDecisions) -> dict[fx.Node, str]:
    """Return the convolutions of an all-integer choice that are slower for it -> the reason.

    Empty where the target has no table of costs, the predicted gain is too small (`LEAST_GAIN`,
    `FAR_GAIN`), or the network is too small to tell.

    Args:
        state: the decisions with every layer in integers that can be.
    """
    table = state.target.costs
    free = frozenset(n for n in state.integer if _is_convolution(n) and state.choice(n).is_default)
    if table is None or not free:
        return {}
    times = _times(state, table, free)
    floats = {node: node in times.fixed for node in (*times.nodes, *times.edges)}
    integers = floats | dict.fromkeys(times.nodes, True)
    before, without = times.total(integers), times.total(floats)
    if before < LEAST_TIME:
        return {}
    if without >= LEAST_SHARE * before:
        slow = {n for n in free if times.nodes[n][True] >= FAR * times.nodes[n][False]}
        first = {n for n in free if _reads_an_input(n)}
        steps = (n for n in _steps_of_swish(first) if n in times.nodes)  # a rule may move some
        fused = {n: (0.0, times.nodes[n][True]) for n in steps}
        fixed = replace(times, fixed=times.fixed | free)
        front = replace(fixed, nodes={**times.nodes, **fused})
        kept = min(before, fixed.total(fixed.cheapest()))
        return _leaving(fixed, before, slow, FAR_GAIN) or _leaving(front, kept, first, FIRST_GAIN)
    labels = times.cheapest()
    best = times.total(labels)
    if without < WIN * best:
        labels, best = floats, without
    if before < LEAST_GAIN * best:
        return {}
    return {node: REASON for node in free if not labels[node]}


def _leaving(times: Times, before: float, layers: Set[fx.Node], gain: float) -> dict[fx.Node, str]:
    """Return the layers that leave integers alone, where that gains so much over `before`."""
    limited = replace(times, fixed=times.fixed.difference(layers))
    labels = limited.cheapest()
    worth = before >= gain * limited.total(labels)
    return {n: REASON for n in layers if not labels[n]} if worth else {}


def _times(state: NodeDecisions, table: CostTable, free: frozenset[fx.Node]) -> Times:
    """Return the times of what can run in integers; of layers, those in `free` alone are chosen."""
    batch, calls = G.captured_batch(state.graph), list(G.calls(state.graph))
    movable = [n for n in calls if n in state.integer or n in state.passthrough or _is_clamp(n)]
    stored = sizes_in_file(state.graph, table, state.integer)

    def node_times(node: fx.Node) -> tuple[float, float]:
        in_float, in_integers = table.node(node, batch)
        if node in stored:  # layers in float are stored as they are
            in_integers = table.convolution(stored[node])[True]
        return in_float, in_integers

    made = [n for n in (*G.placeholders(state.graph), *calls) if n.users and G.is_float(n)]
    return Times(
        nodes={n: node_times(n) for n in movable},
        edges={n: table.edge(n, batch) for n in made},
        fixed=frozenset(n for n in movable if _is_layer(n) and n not in free),
    )


def _converts(node: fx.Node, labels: Mapping[fx.Node, _Label]) -> bool:
    own = labels.get(node, False)
    return any(labels.get(user, False) is not own for user in node.users)


def _reads_an_input(layer: fx.Node) -> bool:
    source = G.source(layer)
    if source.target is aten.constant_pad_nd.default:  # of channels, for the integer kernel
        source = G.source(source)
    return source.op == "placeholder"


def _steps_of_swish(layers: Set[fx.Node]) -> Iterator[fx.Node]:
    """Yield the steps of a hard-swish behind convolutions (`passes.activations`): float kernels
    compute it with their results."""
    for layer in layers:
        scaled = (n for n in layer.users if n.target is torch_ops.rescale)
        for steps in map(_chain, scaled):
            if tuple(step.target for step in steps) == _SWISH and layer in steps[-1].args:
                yield from steps


def _chain(node: fx.Node) -> list[fx.Node]:
    """Return a node and the operators behind it, as long as each has one reader."""
    chain = [node]
    while len(chain[-1].users) == 1 and len(chain) < len(_SWISH):
        chain += chain[-1].users
    return chain


def _is_layer(node: fx.Node) -> bool:
    row = row_of(node)
    return row is not None and row.weight is not None


def _is_convolution(node: fx.Node) -> bool:
    """Return whether a node is a convolution of the kind measured; those of volumes are not."""
    row = row_of(node)
    return row is not None and row.key == "conv" and G.rank(node) <= _IMAGES


def _is_clamp(node: fx.Node) -> bool:
    row = row_of(node)
    return row is not None and row.role is Role.CLIP


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
