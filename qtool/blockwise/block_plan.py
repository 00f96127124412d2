"""A conversion block by block, and the part of its plan that a block has: nodes, and the points
between them and at its ends.

A point belongs to the plan of the whole once, with one range and one scale. A tensor that crosses
the end of a block and that all later readers read in codes leaves the block with the values of its
codes; at the beginning of the next block the same point changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import fx

from qtool.blockwise.checkpoint import Checkpoint
from qtool.blockwise.stored_data import StoredBatch
from qtool.calibration.solve_parameters import Parameters
from qtool.core import graph as G
from qtool.core.graph.cut import Block
from qtool.core.types import Derived, Dynamic, Observed, Requantized, SharedWith
from qtool.planning.plan import Edge, Kind, Point, QuantPlan
from qtool.verification.estimate import CALIBRATION, ESTIMATE


@dataclass(frozen=True)
class BlockwiseRun:
    """A block-wise conversion.

    Attributes:
        whole: the graph of the model in the forms of its target; its weights are deferred.
        plan: its plan.
        blocks: the blocks, in order.
        checkpoint: finished blocks, and activations.
        batches: the batches of the data.
        parameters: those of the points of the plan; none before the calibration.
    """

    whole: G.FloatGraph
    plan: QuantPlan
    blocks: Sequence[Block]
    checkpoint: Checkpoint
    batches: Sequence[StoredBatch] = ()
    parameters: Parameters = field(default_factory=lambda: Parameters({}))

    @cached_property
    def plans(self) -> Sequence[QuantPlan]:
        """The part of the plan that each block has."""
        return [plan_of_block(self.plan, block) for block in self.blocks]

    @property
    def kind(self) -> str:
        """Kind of an estimate on the measured batches: of held-out samples, or without those."""
        return CALIBRATION if all(batch.measured for batch in self.batches) else ESTIMATE

    def read(self, node: fx.Node) -> torch.Tensor:
        """Read a stored tensor of the graph."""
        return G.read_values(G.tensor(self.whole.module, node))

    def required(self, index: int, readers: Iterable[Block]) -> list[str]:
        """Return the names of the tensors from before block `index` that some blocks read."""
        before = {b.tensor_name(n) for b in self.blocks[:index] for n in b.outputs}
        before |= {i.name for i in self.whole.inputs}
        read = [block.tensor_name(n) for block in readers for n in block.inputs]
        return [name for name in dict.fromkeys(read) if name in before]

    def shared_points(self, index: int) -> frozenset[str]:
        """Return the points of a block whose parameters other blocks use, too."""
        others = {
            self.plan.root(p.name) for i, each in enumerate(self.plans) if i != index for p in each
        }
        return frozenset(p.name for p in self.plans[index] if self.plan.root(p.name) in others)


def plan_of_block(plan: QuantPlan, block: Block) -> QuantPlan:
    """Return the plan of a block.

    Args:
        plan: plan of the whole graph.
        block: the block.
    """
    inside = {G.name_of(n) for n in block.calls}
    leaving = dict(_leaving(plan, block))
    points = dict[str, Point]()
    for point in plan:
        edges = [e for e in point.edges if e.user in inside]
        edges += [Edge(source, G.OUTPUT) for source, name in leaving.items() if name == point.name]
        if edges:
            points[point.name] = replace(point, edges=tuple(edges))
    waiting = list(points.values())
    while waiting:
        for name in _named(waiting.pop()):
            if name not in points:
                points[name] = replace(plan.point(name), edges=())
                waiting.append(points[name])
    ordered = tuple(points[p.name] for p in plan if p.name in points)
    nodes = tuple(d for d in plan.nodes if d.node in inside)
    return replace(plan, points=ordered, nodes=nodes)


def observed_in(plan: QuantPlan, block: Block, known: set[str]) -> QuantPlan:
    """Return a plan with the points alone whose ranges the block shows: of what it computes, and of
    inputs of the model.

    Args:
        plan: plan of the whole graph.
        block: the block.
        known: names of the points that blocks before it have shown.
    """
    inputs = [n for n in block.inputs if n.op == "placeholder"]
    ends, inside = {G.name_of(n) for n in block.outputs}, {G.name_of(n) for n in block.calls}
    readable = inside | {G.name_of(n) for n in inputs}
    points = dict[str, Point]()
    for point in plan:
        own = tuple(e for e in point.edges if e.user in inside)
        if isinstance(point.spec, Requantized) and own and point.spec.point in points:
            points[point.name] = replace(point, edges=own)
        if point.tensor not in readable or point.name in known or not _is_observed(point):
            continue
        end = (Edge(point.tensor, G.OUTPUT),) if point.tensor in ends else ()
        if own or end or not point.edges:
            points[point.name] = replace(point, edges=own or end)
    placed = {p.spec.point for p in points.values() if isinstance(p.spec, Requantized)}
    kept = tuple(p for p in points.values() if p.edges or p.name in placed)
    return replace(plan, points=kept, nodes=tuple(d for d in plan.nodes if d.node in inside))


def _is_observed(point: Point) -> bool:
    return point.kind is Kind.ACTIVATION and isinstance(point.spec, Observed)


def _leaving(plan: QuantPlan, block: Block) -> Iterator[tuple[str, str]]:
    """Yield (tensor, point) for each result that leaves the block with the values of its codes."""
    inside = set(block.calls)
    for node in block.outputs:
        name = G.name_of(node)
        readers = [u for u in node.users if u not in inside and _reads_values(u)]
        names = {_rounded_first(plan, plan.reads.get((name, G.name_of(u)))) for u in readers}
        only = names.pop() if len(names) == 1 else None
        if only is not None and not isinstance(plan.point(only).spec, Dynamic):
            yield name, only


def _rounded_first(plan: QuantPlan, name: str | None) -> str | None:
    """Return the first of the points that a tensor goes through on its way to a reader."""
    spec = None if name is None else plan.point(name).spec
    return _rounded_first(plan, spec.point) if isinstance(spec, Requantized) else name


def _reads_values(user: fx.Node) -> bool:
    return user.op == "output" or G.is_tensor(user) or isinstance(G.value(user), list | tuple)


def _named(point: Point) -> tuple[str, ...]:
    """Return the points that a point's parameters come from."""
    match point.spec:
        case SharedWith(name, _) | Requantized(name, _):
            return (name,)
        case Derived(data, weight):
            return data, weight
    return ()
