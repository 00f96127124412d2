"""The additive cost model: predicted error, time and size of a mixed-precision configuration.

A plan consists of items: quantization points, and nodes with the form they are executed in. The
plan of a configuration is approximated by the union of the plans in which only one of its layers is
quantized, so one plan per choice yields all items. Errors of points add up, since
rounding errors are nearly independent. Times of nodes add up, and so do those of the boundaries
between integers and floats, which follow from the forms on both sides of a tensor. Everything is
arithmetic on matrices of configurations x items.

Evaluations correct it by one scale factor per group for errors, and one for times. Regularised
least squares on logarithms keep the factors near 1 while there are few evaluations.
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
from qtool.plugins.search.choices import FLOAT, Config, SearchSpace

_INTEGER_FORMS = (Execution.INTEGER, Execution.PASS, Execution.FUSED)
_NOT_TIMED = (Execution.FLOAT, Execution.SHAPE)
_PRIOR = 0.05  # weight of a factor of e, relative to one evaluation
_STEPS = 8  # of Gauss-Newton

Item = tuple[str, str]
"""A point and the type it rounds to, or a node and its form."""


@dataclass(frozen=True, eq=False)
class Items:
    """Items of the configurations of a space.

    Attributes:
        points, nodes: all items.
        choice_points, choice_nodes: [choices of all groups, items] 1 if a choice needs the item.
        fixed_points, fixed_nodes: [items] 1 if every configuration has the item.
        tensors: see `_boundary_matrices`.
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
        """Hash of what measurements of the items depend on, except model and data."""
        text = json.dumps([self.points, self.nodes, [g.choices for g in self.space.groups]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def one_hot(self, configs: Array) -> Array:
        """Return [n, choices of all groups] zeros and ones for [n, groups] indices of choices."""
        starts = np.cumsum([0, *(len(g.choices) for g in self.space.groups)])
        encoded = np.zeros((len(configs), starts[-1]), np.float32)
        rows = np.arange(len(configs))[:, None]
        encoded[rows, configs + starts[:-1]] = 1
        return encoded


def form_of(execution: Execution, points: Sequence[str]) -> str:
    """Return the form of a node: its execution and the types of its weights."""
    return f"{execution.value} {' '.join(points)}".strip()


def point_items(plan: QuantPlan) -> set[Item]:
    """Return the points of a plan that round; the error of a bias is too small to measure."""
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
    """Return points and nodes of the plan of a configuration; none if all of it is float."""
    if space.is_float(config):
        return set(), set()
    plan = space.plan(space.recipe_of(config))
    return point_items(plan), _node_items(plan)


def find_items(space: SearchSpace) -> Items:
    """Return the items of a space, from one plan per choice."""
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
    items = Items(
        space,
        points,
        nodes,
        _incidence([p for p, _ in alone], points),
        _incidence([n for _, n in alone], nodes),
        _incidence([always[0]], points)[0],
        _incidence([always[1]], nodes)[0],
    )
    return replace(items, tensors=_boundary_matrices(items))


def extra_points(space: SearchSpace) -> tuple[Point, ...]:
    """Return the points whose ranges some choice needs, but not the recipe of the whole model.

    For example those of a tensor that shares its parameters only while others are quantized.
    """
    own = {p.name for p in space.plan(space.recipe).observed()}
    nothing = space.config(FLOAT)
    points: dict[str, Point] = {}
    alone = [
        tuple(number if i == k else (other if in_float else 0) for k, other in enumerate(nothing))
        for i, group in enumerate(space.groups)
        for number in range(len(group.choices))
        for in_float in (True, False)
    ]
    for config in (*alone, *space.alternating):
        if not space.is_float(config):
            for point in space.plan(space.recipe_of(config)).observed():
                points.setdefault(point.name, point)
    return tuple(p for name, p in points.items() if name not in own)


def _incidence(sets: Sequence[set[Item]], items: Sequence[Item]) -> Array:
    return np.array([[item in each for item in items] for each in sets], np.float32).reshape(
        len(sets), len(items)
    )


def _boundary_matrices(items: Items) -> dict[str, Array]:
    """Return the matrices of boundaries between integers and floats, of each quantized tensor.

    elements: [tensors] of one sample. point: [tensors, points]. maker: [tensors, nodes] forms in
    which its producer returns integers. reader: [consumers, nodes] forms in which a consumer reads
    integers. of: [consumers] the tensor that it reads.
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
        "point": np.array([[p == n for p, _ in items.points] for n in names], np.float32).reshape(
            len(names), len(items.points)
        ),
        "producer": np.array(maker, np.float32).reshape(len(names), count),
        "consumer": np.array(reader, np.float32).reshape(len(of), count),
        "tensor_of_consumer": np.array(of, np.int64),
    }


def _elements(node: fx.Node) -> int:
    value: Any = G.value(node)
    return int(np.prod([G.hint(size) for size in value.shape[1:]], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class CostModel:
    """Predicts error, time and size of configurations.

    Attributes:
        errors: [points] noise-to-signal ratio of the outputs when only this tensor is rounded.
        times: [nodes] microseconds of a form minus those of float.
        float_time: microseconds of the float model.
        boundary_us, boundary_element_us: microseconds of a boundary between integers and floats,
            and of each element there.
        sizes: [choices of all groups] bytes that a choice adds to float_size.
        error_scales: [groups] scale factors of errors, fitted to evaluations.
        time_scale: scale factor of times, fitted to evaluations.
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
        """Return [n] noise-to-signal ratio, microseconds, bytes of [n, groups] configurations."""
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
        """Return the number of boundaries between integers and floats, and their elements."""
        t = self.items.tensors
        rounded = points @ t["point"].T > 0
        produced = nodes @ t["producer"].T > 0
        consumed = nodes @ t["consumer"].T > 0
        float_readers = np.zeros((len(points), len(t["elements"])), np.float32)
        np.add.at(float_readers.T, t["tensor_of_consumer"], (~consumed).T.astype(np.float32))
        begin, end = rounded & ~produced, rounded & produced & (float_readers > 0)
        boundaries = begin.astype(np.float64) + end
        return boundaries.sum(1), boundaries @ t["elements"]

    @cached_property
    def owning_group(self) -> Array:
        """[points] first group that needs a point; the first group for a fixed one."""
        groups = np.repeat(
            np.arange(len(self.items.space.groups)),
            [len(g.choices) for g in self.items.space.groups],
        )
        owning: Array = groups[self.items.choice_points.argmax(0)]
        return owning

    def group_noise(self, config: Config) -> Array:
        """Return [groups] predicted noise of the points that each group owns."""
        spread = self.items.one_hot(np.array([config]))
        points = (spread @ self.items.choice_points + self.items.fixed_points)[0] > 0
        noise = points * self.errors * self.error_scales[self.owning_group]
        total: Array = np.bincount(self.owning_group, noise, len(self.items.space.groups))
        return total


def fit_scales(
    model: CostModel, configs: Sequence[Config], noise: Sequence[float], time: Sequence[float]
) -> CostModel:
    """Return the model with scale factors that fit the measurements.

    Args:
        model: cost model with scale factors of 1.
        configs: evaluated configurations.
        noise, time: their noise-to-signal ratios and microseconds.
    """
    if not configs:
        return model
    _, predicted, _ = model.predict(np.array(configs))
    predicted = predicted - model.float_time
    measured = np.array(time) - model.float_time
    scale = float(np.square(predicted).mean()) or 1.0
    time_scale = (predicted @ measured / scale + _PRIOR) / (predicted @ predicted / scale + _PRIOR)
    parts = np.array([model.group_noise(c) for c in configs])
    known = (np.array(noise) > 0) & (parts.sum(1) > 0)
    error_scales = _error_scales(parts[known], np.array(noise)[known])
    return replace(model, error_scales=error_scales, time_scale=max(0.1, float(time_scale)))


def _error_scales(parts: Array, noise: Array) -> Array:
    """Return the scale factors of [evaluations, groups] noise, by Gauss-Newton on logarithms."""
    logs = np.zeros(parts.shape[1])
    if not len(noise):
        return np.exp(logs)
    for _ in range(_STEPS):
        each = parts * np.exp(logs)
        total = each.sum(1)
        slopes = each / total[:, None]
        residuals = np.log(noise) - np.log(total)
        left = slopes.T @ slopes + _PRIOR * np.eye(len(logs))
        logs = logs + np.linalg.solve(left, slopes.T @ residuals - _PRIOR * logs)
        logs = np.clip(logs, -4, 4)
    factors: Array = np.exp(logs)
    return factors
