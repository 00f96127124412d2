"""The additive model: what any choice is reckoned to lose and to cost, without making it.

A plan consists of points that round tensors and of nodes that are run in one form or another. Each
of them is there because some layer needs it, so that the plan of any choice is the union of what
its layers need alone (the others in float): points and forms are looked up in as many plans as
there are choices. Errors of points add up, since roundings are nearly independent; times of nodes
add up, and so do those of the places where codes become floats or floats codes, which follow from
the forms on both sides of a tensor. All is arithmetic on matrices of configurations x items.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import fx

from qtool.core import graph as G
from qtool.core.types import Array
from qtool.planning.plan import Execution, Kind, Point, QuantPlan, describe_spec
from qtool.search.choices import FLOAT, Config, SearchSpace

_INTEGER_FORMS = (Execution.INTEGER, Execution.PASS, Execution.FUSED)
_NOT_TIMED = (Execution.FLOAT, Execution.SHAPE)

Item = tuple[str, str]
"""A point's name and what it rounds to, or a node's name and its form."""


@dataclass(frozen=True, eq=False)
class Items:
    """What the configurations of a space consist of.

    points, nodes: all items. wants_points, wants_nodes: [choices of all groups, items], whether a
    choice needs an item by itself. tensors: see `_tensors`.
    """

    space: SearchSpace
    points: tuple[Item, ...]
    nodes: tuple[Item, ...]
    choice_points: Array
    choice_nodes: Array
    fixed_points: Array
    fixed_nodes: Array
    tensors: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """What measurements of the items depend on, beside the model and the data."""
        text = json.dumps([self.points, self.nodes, [g.choices for g in self.space.groups]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def one_hot(self, configs: Array) -> Array:
        """[n, groups] numbers of choices as [n, choices of all groups] of zeros and ones."""
        starts = np.cumsum([0, *(len(g.choices) for g in self.space.groups)])
        found = np.zeros((len(configs), starts[-1]), np.float32)
        rows = np.arange(len(configs))[:, None]
        found[rows, configs + starts[:-1]] = 1
        return found


def form_of(execution: Execution, points: Sequence[str]) -> str:
    """How a node is run, in a word: what its time is looked up by."""
    return f"{execution.value} {' '.join(points)}".strip()


def point_items(plan: QuantPlan) -> set[Item]:
    """The points of a plan that round anything; what a bias loses cannot be measured."""
    return {
        (p.name, describe_spec(p.spec).split(",")[0])
        for p in plan.placed
        if p.kind is not Kind.BIAS and not describe_spec(p.spec).startswith("float")
    }


def _node_items(plan: QuantPlan) -> set[Item]:
    kinds = {p.name: describe_spec(p.spec).split(" ")[0] for p in plan}
    return {
        (d.node, form_of(d.execution, [kinds[i] for i in d.inputs if i.endswith(".weight")]))
        for d in plan.nodes
        if d.execution not in _NOT_TIMED
    }


def _plan_items(space: SearchSpace, config: Config) -> tuple[set[Item], set[Item]]:
    """Points and nodes of the plan of a configuration; none where all of it is float."""
    if space.is_float(config):
        return set(), set()
    plan = space.plan(space.recipe_of(config))
    return point_items(plan), _node_items(plan)


def find_items(space: SearchSpace) -> Items:
    """Finds what each choice needs, from one plan each."""
    nothing = space.config(FLOAT)
    always = _plan_items(space, nothing)
    alone: list[tuple[set[Item], set[Item]]] = []
    for i, group in enumerate(space.groups):
        for number, name in enumerate(group.choices):
            if name == FLOAT:
                alone.append((set(), set()))
                continue
            alone.append(_plan_items(space, (*nothing[:i], number, *nothing[i + 1 :])))
    points = tuple(sorted(set().union(always[0], *(p for p, _ in alone))))
    nodes = tuple(sorted(set().union(always[1], *(n for _, n in alone))))
    found = Items(
        space,
        points,
        nodes,
        _incidence([p for p, _ in alone], points),
        _incidence([n for _, n in alone], nodes),
        _incidence([always[0]], points)[0],
        _incidence([always[1]], nodes)[0],
    )
    return replace(found, tensors=_boundary_matrices(found))


def extra_points(space: SearchSpace) -> tuple[Point, ...]:
    """The points whose ranges any choice needs, beyond those of the recipe of the whole model: of
    a tensor, say, that shares its parameters with others as long as they are in codes."""
    own = {p.name for p in space.plan(space.recipe).observed()}
    nothing = space.config(FLOAT)
    found: dict[str, Point] = {}
    alone = [
        tuple(number if i == k else (other if lifted else 0) for k, other in enumerate(nothing))
        for i, group in enumerate(space.groups)
        for number in range(len(group.choices))
        for lifted in (True, False)
    ]
    for config in (*alone, *space.alternating):
        if not space.is_float(config):
            for point in space.plan(space.recipe_of(config)).observed():
                found.setdefault(point.name, point)
    return tuple(p for name, p in found.items() if name not in own)


def _incidence(sets: Sequence[set[Item]], items: Sequence[Item]) -> Array:
    return np.array([[item in each for item in items] for each in sets], np.float32).reshape(
        len(sets), len(items)
    )


def _boundary_matrices(items: Items) -> dict[str, Array]:
    """Where codes may meet floats: each tensor that is ever rounded.

    elements: of one sample. point: [tensors, points]; maker: [tensors, nodes] the forms in which
    its maker gives codes; reader: [tensors x readers, nodes]; of: which tensor a reader reads.
    """
    graph = items.space.graph.graph
    nodes = {G.name_of(n): n for n in graph.nodes}
    activations = [(p, s) for p, s in items.points if p in nodes and nodes[p].op != "get_attr"]
    names = list(dict.fromkeys(p for p, _ in activations))
    in_codes = {
        (n, f) for n, f in items.nodes if f.split(" ")[0] in {e.value for e in _INTEGER_FORMS}
    }
    maker, reader, of, elements = [], [], [], []
    for k, name in enumerate(names):
        node = nodes[name]
        elements.append(_elements(node))
        maker.append([n == name and (n, f) in in_codes for n, f in items.nodes])
        for user in node.users:
            read = G.name_of(user)
            reader.append([n == read and (n, f) in in_codes for n, f in items.nodes])
            of.append(k)
    count = len(items.nodes)
    return {
        "elements": np.array(elements, np.float64),
        "point": np.array([[p == n for p, _ in items.points] for n in names], np.float32),
        "maker": np.array(maker, np.float32).reshape(len(names), count),
        "reader": np.array(reader, np.float32).reshape(len(of), count),
        "of": np.array(of, np.int64),
    }


def _elements(node: fx.Node) -> int:
    value: Any = G.value(node)
    return int(np.prod([G.hint(size) for size in value.shape[1:]], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class CostModel:
    """Predictions.

    errors: [points] noise of the outputs over their signal, when only this tensor is rounded.
    times: [nodes] microseconds that a form costs more than float. float_time: of the float model.
    edge, element: microseconds of a place where codes meet floats, and for each element there.
    sizes: [choices of all groups] bytes that a choice adds to float_size.
    trust: [groups] factors of errors, hurry: a factor of times; as evaluations have corrected them.
    """

    items: Items
    errors: Array
    times: Array
    float_time: float
    boundary_us: float
    boundary_element_us: float
    sizes: Array
    float_size: float
    error_scales: Array
    time_scale: float = 1.0

    def predict(self, configs: Array) -> tuple[Array, Array, Array]:
        """(noise over signal, microseconds, bytes) of [n, groups] configurations."""
        spread = self.items.one_hot(configs)
        points = ((spread @ self.items.choice_points + self.items.fixed_points) > 0).astype(
            np.float32
        )
        nodes = ((spread @ self.items.choice_nodes + self.items.fixed_nodes) > 0).astype(np.float32)
        edges, elements = self.count_boundaries(points, nodes)
        time = nodes @ self.times + self.boundary_us * edges + self.boundary_element_us * elements
        noise = points @ (self.errors * self.error_scales[self.owning_group])
        return (
            noise,
            self.float_time + self.time_scale * time,
            self.float_size + spread @ self.sizes,
        )

    def count_boundaries(self, points: Array, nodes: Array) -> tuple[Array, Array]:
        """How many places there are where codes meet floats, and their elements."""
        t = self.items.tensors
        rounded = points @ t["point"].T > 0
        made = nodes @ t["maker"].T > 0
        read = nodes @ t["reader"].T > 0
        unread = np.zeros((len(points), len(t["elements"])), np.float32)
        np.add.at(unread.T, t["of"], (~read).T.astype(np.float32))
        begin, end = rounded & ~made, rounded & made & (unread > 0)
        meets = begin.astype(np.float64) + end
        return meets.sum(1), meets @ t["elements"]

    @cached_property
    def owning_group(self) -> Array:
        """[points] the first group that needs a point; the first of all for one that is always."""
        groups = np.repeat(
            np.arange(len(self.items.space.groups)),
            [len(g.choices) for g in self.items.space.groups],
        )
        found: Array = groups[self.items.choice_points.argmax(0)]
        return found

    def group_noise(self, config: Config) -> Array:
        """[groups] the predicted noise of the tensors that each group owns."""
        spread = self.items.one_hot(np.array([config]))
        points = (spread @ self.items.choice_points + self.items.fixed_points)[0] > 0
        noise = points * self.errors * self.error_scales[self.owning_group]
        found: Array = np.bincount(self.owning_group, noise, len(self.items.space.groups))
        return found
