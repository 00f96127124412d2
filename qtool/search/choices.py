"""What a search chooses from: groups of layers, and the schemes that each may have.

Whether a choice is one is asked of the planner: a scheme that leads to the same plan as another, or
to none, is no choice of that layer on that target.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph.float_graph import FloatGraph
from qtool.core.types import Observed, ObserverSpec
from qtool.planning import targets
from qtool.planning.plan import Decision, Execution, QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.recipe import MODES, Recipe, Rule

CHOICES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "static": {"scheme": "static"},
        "static-16": {"scheme": "static", "activations": "uint16"},
        "dynamic": {"scheme": "dynamic"},
        "int8-weights": {"scheme": "int8-weights"},
        "int4-weights": {"scheme": "int4-weights"},
        "float": {"scheme": "float"},
    }
)
"""A choice -> what a rule of a recipe says for it."""

FLOAT = "float"

Config = tuple[int, ...]
"""The number of the choice of each group."""

_QUANTIZED = (Execution.INTEGER, Execution.DYNAMIC, Execution.WEIGHTS)


@dataclass(frozen=True)
class Group:
    """Layers that are quantized alike. choices: names of `CHOICES`; float is the last."""

    name: str
    layers: tuple[str, ...]
    op: str
    macs: int
    choices: tuple[str, ...]


@dataclass(frozen=True)
class SearchSpace:
    """All that can be chosen for one graph.

    recipe: what holds for everything that is not chosen. graph, target, observer, seen: what a plan
    is made from. always: whether something is quantized that is not chosen for.
    """

    groups: tuple[Group, ...]
    recipe: Recipe
    graph: FloatGraph
    target: str
    observer: ObserverSpec
    observers: Mapping[str, ObserverSpec]
    has_fixed: bool = False

    def recipe_of(self, config: Config) -> Recipe:
        """A recipe as a person would write it: a rule for each layer that is not as the recipe of
        the whole model has it."""
        rules = [
            rule
            for group, number in zip(self.groups, config, strict=True)
            for rule in _rules(group, group.choices[number])
            if group.choices[number] != group.choices[0]
        ]
        return replace(self.recipe, rules=(*self.recipe.rules, *rules))

    @property
    def default_config(self) -> Config:
        """What the recipe of the whole model says."""
        return (0,) * len(self.groups)

    def is_float(self, config: Config) -> bool:
        """Whether nothing at all is quantized: a model of which there is no plan."""
        return not self.has_fixed and config == self.config(FLOAT)

    def plan(self, recipe: Recipe) -> QuantPlan:
        target = targets.target(self.target)
        return make_plan(self.graph.graph, target, self.observer, recipe, self.observers)

    def config(self, choice: str) -> Config:
        """The same choice for every group that has it, the first one for the others."""
        return tuple(g.choices.index(choice) if choice in g.choices else 0 for g in self.groups)

    @property
    def alternating(self) -> tuple[Config, Config]:
        """Every other group in float: neighbours are unlike each other."""
        found = [
            tuple(len(g.choices) - 1 if (i + k) % 2 else 0 for i, g in enumerate(self.groups))
            for k in range(2)
        ]
        return found[0], found[1]

    def choice_names(self, config: Config) -> tuple[str, ...]:
        """The names of the choices."""
        return tuple(g.choices[i] for g, i in zip(self.groups, config, strict=True))

    def config_of(self, names: Sequence[str]) -> Config:
        """The opposite of `named`."""
        return tuple(g.choices.index(n) for g, n in zip(self.groups, names, strict=True))


def search_space(
    graph: FloatGraph,
    plan: QuantPlan,
    seen: Mapping[str, ObserverSpec],
    choices: Sequence[str],
    groups: Sequence[str] = (),
) -> SearchSpace:
    """The groups of a plan's layers with their choices.

    Args:
        graph, plan: the float graph, and what its recipe makes of it. A layer that a rule of the
            recipe speaks of is not chosen for.
        choices: names of `CHOICES`; float is always one.
        groups: globs; the layers that one selects are chosen for together. By default those of
            one operator that read the same tensor: queries, keys and values.

    Raises:
        PlanError: an unknown choice, a glob that selects no layer, or nothing is quantized.
    """
    for name in choices:
        if name not in CHOICES:
            known = ", ".join(CHOICES)
            raise PlanError(f"the choice '{name}' is unknown; known are {known}")
    ruled = _layers_with_rules(plan)
    layers = {d.node: d for d in plan.nodes if _is_layer(d) and d.node not in ruled}
    if not layers:
        raise PlanError("there is nothing to choose: no layer is quantized that no rule speaks of")
    always = any(_is_layer(d) and d.node not in layers for d in plan.nodes)
    space = SearchSpace((), plan.recipe, graph, plan.target, plan.observer, seen, always)
    nodes = {G.name_of(n): n for n in graph.graph.nodes}
    found = []
    for members in _layer_groups(layers, nodes, groups):
        op, macs = layers[members[0]].op, sum(layers[m].macs for m in members)
        group = Group(members[0] if len(members) == 1 else _common(members), members, op, macs, ())
        found.append(replace(group, choices=_choices(space, group, choices)))
    return replace(space, groups=tuple(g for g in found if len(g.choices) > 1))


def _is_layer(decision: Decision) -> bool:
    """Whether a node is worth quantizing for itself; others follow."""
    heavy = decision.macs or any(i.endswith(".weight") for i in decision.inputs)
    return bool(heavy) and decision.execution in _QUANTIZED


def observers_of(plan: QuantPlan) -> dict[str, ObserverSpec]:
    """By which observer each tensor is ranged."""
    return {p.name: p.spec.observer for p in plan.observed() if isinstance(p.spec, Observed)}


def _layers_with_rules(plan: QuantPlan) -> set[str]:
    rules = [r for r in plan.recipe.rules if r.changes_scheme]
    return {d.node for d in plan.nodes if any(r.selects(d.node, d.op) for r in rules)}


def _layer_groups(
    layers: Mapping[str, Decision], nodes: Mapping[str, fx.Node], globs: Sequence[str]
) -> list[tuple[str, ...]]:
    """The layers of each group, in order of computation."""
    keys: dict[object, list[str]] = {}
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in layers):
            raise PlanError(f"the group '{glob}' selects no layer that can be chosen for")
    for name in layers:
        said = next((g for g in globs if fnmatchcase(name, g)), None)
        alike = (nodes[name].args[0], "linear") if layers[name].op == "linear" else name
        keys.setdefault(alike if said is None else ("glob", said), []).append(name)
    return [tuple(members) for members in keys.values()]


def _common(names: Sequence[str]) -> str:
    """What names have in common, and how many they are: encoder.0.attention.* (3)."""
    start = names[0]
    while not all(n.startswith(start) for n in names):
        start = start[:-1]
    return f"{start}* ({len(names)})"


def _choices(space: SearchSpace, group: Group, asked: Sequence[str]) -> tuple[str, ...]:
    """Those that differ in the plan: what the recipe of the whole model says first, float last."""

    def digest(name: str) -> str:
        rules = (*space.recipe.rules, *_rules(group, name))
        try:
            return space.plan(replace(space.recipe, rules=rules)).digest
        except PlanError:  # nothing is quantized then
            return ""

    found = {digest(FLOAT): FLOAT}
    for name in (MODES[space.recipe.mode], *asked):
        found.setdefault(digest(name), name)
    return (*(name for name in found.values() if name != FLOAT), FLOAT)


def _rules(group: Group, choice: str) -> list[Rule]:
    return [Rule(select=exact_selector(name), **CHOICES[choice]) for name in group.layers]


def exact_selector(name: str) -> str:
    """What selects this name alone."""
    return "re:" + re.escape(name) if set(name) & set("*?[") or name.startswith("re:") else name
