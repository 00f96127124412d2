"""Search space of mixed precision: groups of layers, and the precisions that each may have.

The planner decides which choices exist: a scheme that leads to the same plan as another one, or to
no plan, is not a choice for that layer on that target.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType

from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.graph.float_graph import FloatGraph
from qtool.core.option_names import unknown_name
from qtool.core.types import Observed, ObserverSpec
from qtool.planning import targets
from qtool.planning.plan import Decision, Execution, QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.recipe import INTEGER_LAYERS, MODES, Recipe, Rule

CHOICES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "static": {"scheme": "static"},
        "static-16": {"scheme": "static", "activations": "uint16"},
        "dynamic": {"scheme": "dynamic"},
        "int8-weights": {"scheme": "int8-weights"},
        "int4-weights": {"scheme": "int4-weights"},
        "int2-weights": {"scheme": "int2-weights"},
        "float": {"scheme": "float"},
    }
)
"""Fields of a recipe rule, by the name of the choice."""

FLOAT, STORED = "float", "int8-weights"

Config = tuple[int, ...]
"""Index of the choice of each group."""

_QUANTIZED = (Execution.INTEGER, Execution.DYNAMIC, Execution.WEIGHTS)


@dataclass(frozen=True)
class Group:
    """Layers with the same precision.

    Attributes:
        op, macs: operator and MACs of the layers.
        choices: keys of `CHOICES`; the default first, float last.
    """

    name: str
    layers: tuple[str, ...]
    op: str
    macs: int
    choices: tuple[str, ...]


@dataclass(frozen=True)
class SearchSpace:
    """Groups of layers of one graph with their choices.

    Attributes:
        recipe: recipe for everything that is not chosen.
        graph, target, observer, observers: arguments of the planner.
        has_fixed: True if a layer that is not chosen is quantized.
    """

    groups: tuple[Group, ...]
    recipe: Recipe
    graph: FloatGraph
    target: str
    observer: ObserverSpec
    observers: Mapping[str, ObserverSpec]
    has_fixed: bool = False

    def recipe_of(self, config: Config) -> Recipe:
        """Return the recipe of a configuration, with a rule for each layer not at its default."""
        rules = [
            rule
            for group, number in zip(self.groups, config, strict=True)
            for rule in _rules(group, group.choices[number])
            if group.choices[number] != group.choices[0]
        ]
        return replace(self.recipe, rules=(*self.recipe.rules, *rules))

    @property
    def default_config(self) -> Config:
        """Configuration of the recipe of the whole model."""
        return (0,) * len(self.groups)

    def is_float(self, config: Config) -> bool:
        """Return True if nothing is quantized, so that there is no plan."""
        pairs = enumerate(zip(config, self.config(FLOAT), strict=True))
        chosen = {at for at, (choice, in_float) in pairs if choice != in_float}
        return not self.has_fixed and chosen <= self._followers

    @cached_property
    def _followers(self) -> frozenset[int]:
        """Indices of groups that are quantized only with another one: a small table, with the
        layer that shares it."""
        return frozenset(at for at in range(len(self.groups)) if not self._is_plan_of(at))

    def _is_plan_of(self, index: int) -> bool:
        """Return whether there is a plan with one group quantized, in its first choice."""
        in_float = self.config(FLOAT)
        config = (*in_float[:index], 0, *in_float[index + 1 :])
        if config == in_float:
            return True
        try:
            self.plan(self.recipe_of(config))
        except PlanError:
            return False
        return True

    def plan(self, recipe: Recipe) -> QuantPlan:
        target = targets.target(self.target)
        return make_plan(self.graph.graph, target, self.observer, recipe, self.observers)

    def config(self, choice: str) -> Config:
        """Return the same choice for every group that has it, the default for the others."""
        return tuple(g.choices.index(choice) if choice in g.choices else 0 for g in self.groups)

    def config_of_plan(self, plan: QuantPlan) -> Config:
        """Return the configuration nearest to a plan of the same graph, which leaves more in float
        than the default one; a group of layers that it treats differently is in float."""
        chosen, default = _executions(plan), _executions(self.plan(self.recipe))
        config = []
        for group in self.groups:
            own = {chosen[layer] for layer in group.layers if chosen[layer] is not default[layer]}
            stored = own == {Execution.WEIGHTS} and STORED in group.choices
            choice = group.choices[0] if not own else STORED if stored else FLOAT
            config.append(group.choices.index(choice))
        return tuple(config)

    @property
    def alternating(self) -> tuple[Config, Config]:
        """Two configurations with every other group in float."""
        configs = [
            tuple(len(g.choices) - 1 if (i + k) % 2 else 0 for i, g in enumerate(self.groups))
            for k in range(2)
        ]
        return configs[0], configs[1]

    def choice_names(self, config: Config) -> tuple[str, ...]:
        """Return the names of the choices."""
        return tuple(g.choices[i] for g, i in zip(self.groups, config, strict=True))

    def config_of(self, names: Sequence[str]) -> Config:
        """Return the configuration with these choices."""
        return tuple(g.choices.index(n) for g, n in zip(self.groups, names, strict=True))


def search_space(
    graph: FloatGraph,
    plan: QuantPlan,
    observers: Mapping[str, ObserverSpec],
    choices: Sequence[str],
    groups: Sequence[str] = (),
) -> SearchSpace:
    """Return the groups of a plan's layers with their choices.

    Args:
        graph, plan: the float graph and its plan. Layers that a rule of the recipe selects are
            not chosen.
        choices: keys of `CHOICES`; float is always allowed.
        groups: globs; layers that match the same glob get the same precision. By default linear
            layers that read the same tensor do: queries, keys and values.

    Raises:
        PlanError: an unknown choice, a glob that selects no layer, or nothing is quantized.
    """
    for name in choices:
        if name not in CHOICES:
            raise PlanError(unknown_name("choice", name, CHOICES))
    ruled = _layers_with_rules(plan)
    layers = {d.node: d for d in plan.nodes if _is_layer(d) and d.node not in ruled}
    if not layers:
        raise PlanError("nothing to search: every quantized layer is fixed by a recipe rule")
    always = any(_is_layer(d) and d.node not in layers for d in plan.nodes)
    recipe = replace(plan.recipe, slow_layers=INTEGER_LAYERS)  # a choice says what it is
    space = SearchSpace((), recipe, graph, plan.target, plan.observer, observers, always)
    nodes = {G.name_of(n): n for n in graph.graph.nodes}
    selected = []
    for members in _layer_groups(layers, nodes, groups):
        op, macs = layers[members[0]].op, sum(layers[m].macs for m in members)
        group = Group(members[0] if len(members) == 1 else _common(members), members, op, macs, ())
        selected.append(replace(group, choices=_choices(space, group, choices)))
    return replace(space, groups=tuple(g for g in selected if len(g.choices) > 1))


def _executions(plan: QuantPlan) -> dict[str, Execution]:
    return {d.node: d.execution for d in plan.nodes}


def _is_layer(decision: Decision) -> bool:
    """Return True for nodes with MACs or weights, which are chosen; other nodes follow them."""
    heavy = decision.macs or any(i.endswith(".weight") for i in decision.inputs)
    return bool(heavy) and decision.execution in _QUANTIZED


def observers_of(plan: QuantPlan) -> dict[str, ObserverSpec]:
    """Return the observer of each tensor."""
    return {p.name: p.spec.observer for p in plan.observed() if isinstance(p.spec, Observed)}


def _layers_with_rules(plan: QuantPlan) -> set[str]:
    rules = [r for r in plan.recipe.rules if r.changes_scheme]
    return {d.node for d in plan.nodes if any(r.selects(d.node, d.op) for r in rules)}


def _layer_groups(
    layers: Mapping[str, Decision], nodes: Mapping[str, fx.Node], globs: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the layers of each group, in order of computation."""
    keys: dict[object, list[str]] = {}
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in layers):
            raise PlanError(f"the group '{glob}' selects no layer of the search space")
    for name in layers:
        group = next((g for g in globs if fnmatchcase(name, g)), None)
        own = (nodes[name].args[0], "linear") if layers[name].op == "linear" else name
        keys.setdefault(own if group is None else ("glob", group), []).append(name)
    return [tuple(members) for members in keys.values()]


def _common(names: Sequence[str]) -> str:
    """Return the common prefix and the number of names: encoder.0.attention.* (3)."""
    start = names[0]
    while not all(n.startswith(start) for n in names):
        start = start[:-1]
    return f"{start}* ({len(names)})"


def _choices(space: SearchSpace, group: Group, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the choices with different plans, the default first, float last."""

    def digest(name: str) -> str:
        rules = (*space.recipe.rules, *_rules(group, name))
        try:
            return space.plan(replace(space.recipe, rules=rules)).digest
        except PlanError:  # nothing is quantized then
            return ""

    by_plan = {digest(FLOAT): FLOAT}
    for name in (MODES[space.recipe.mode], *allowed):
        by_plan.setdefault(digest(name), name)
    return (*(name for name in by_plan.values() if name != FLOAT), FLOAT)


def _rules(group: Group, choice: str) -> list[Rule]:
    return [Rule(select=exact_selector(name), **CHOICES[choice]) for name in group.layers]


def exact_selector(name: str) -> str:
    """Return a selector that matches only this name."""
    return "re:" + re.escape(name) if set(name) & set("*?[") or name.startswith("re:") else name
