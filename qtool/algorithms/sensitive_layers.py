"""The step `sensitive-layers`: the few layers that make most of the error compute in float.

Where a network loses much, often few tensors are the cause: an input of raw counts, those of a stem
with outliers, the input weights of a recurrent layer behind a power spectrum. They are found by the
error that each quantized tensor makes alone (as in the mixed precision of AIMET and HAWQ, Dong et
al. 2019), and their layers stay in float one after the other, the largest error for its work first.

A network with a large error may give a tenth of its work for that; any other one nothing but what
the table of costs calls as fast as before.

A tensor keeps its codes as long as one integer kernel computes or reads it. So what a choice saves
is simulated with the plan that it leads to. The result is that plan: its recipe has a rule for each
of the layers, which a reader of the file follows as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import fx

from qtool.algorithms.acceptance import best_candidate, runtime_module
from qtool.algorithms.comparable_pairs import MIN_POWER, compared_nodes, worst_error
from qtool.algorithms.conversion_state import LESS_ACCURATE, ConversionState
from qtool.algorithms.error_estimates import estimated_errors
from qtool.algorithms.error_sources import (
    ErrorSource,
    error_sources,
    errors_alone,
    exact_selector,
    stored_weights,
    work_in_codes,
)
from qtool.algorithms.registry import SENSITIVE_LAYERS
from qtool.calibration.calibration import Calibration
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import PlanError
from qtool.core.graph.executor import Executor
from qtool.core.number_texts import quantity
from qtool.core.ops import row_of
from qtool.core.summary import group_names
from qtool.planning import targets, weight_only
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.recipe import INTEGER_LAYERS, Recipe, Rule
from qtool.planning.speed.slow_layers import plan_time

GOOD_DB = 40.0
"""SQNR of an output from which nothing is looked for, against what varies over samples."""

POOR_DB = 15.0
"""SQNR of an output below which the step may move work. With nearest codes it is a few dB lower
than in the file, and from 20 dB there hardly a user notices the error."""

BUDGET = 0.1
"""Share of the network's work that may move to float."""

SLOWER = 1.02
"""Most of the predicted time where it is not, as a multiple of the time before."""

LARGER = 0.02
"""Share of the stored weights that may be floats where it is not: the head of a language model is
often the largest layer."""

WORTH_DB = 2.0  # least gain of all choices
STEP_DB = 0.5  # least gain of one of them
FEW, SAMPLES = 2, 8  # that all tensors are measured on, and the worst ones
TRIED = 16  # choices
LIKELY = 4 * TRIED  # sources that are measured, of more the worst by an estimate
JUDGES = 32  # held-out samples, on which the plan may not be worse
LEAST_SHARE = 0.005  # of the error, for a choice; small sources are what is left of a large error
LARGE_SHARE = 0.2  # of a smaller error
GROUPS = 16, 4  # sources that are measured together, to leave out those without a large share
MEMORY = 256 << 20  # bytes of the values of one float run
_STORED = "int8-weights"


@dataclass(frozen=True)
class _Choice:
    """Layers in float.

    Attributes:
        nodes: names of the layers.
        weights: names of those whose weights are floats as well; the others have codes where the
            target stores them for kernels in float.
    """

    nodes: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()

    def with_source(self, source: ErrorSource) -> _Choice:
        own = frozenset(n for n in source.nodes if f"{n}.weight" in source.points)
        return _Choice(self.nodes | source.nodes, self.weights | own)


class _Error(NamedTuple):
    """Largest relative squared error of a compared value.

    Attributes:
        few: error of the first `FEW` batches; infinite where there are fewer.
        whole: error of all batches.
    """

    few: float
    whole: float


Budget = Callable[[_Choice, QuantPlan], bool]


class _Network:
    """The quantized network of a state, run with some of its points.

    Attributes:
        state: the state.
        batches: samples, in batches whose values fit into `MEMORY`.
        run: executor of its graph.
        work: see `work_in_codes`.
        limit: work that may move to float.
    """

    def __init__(self, state: ConversionState) -> None:
        self.state = state
        self.run = Executor(replace(state.graph, module=runtime_module(state)))
        self.compared = compared_nodes(self.run.graph)
        self.work = work_in_codes(state.graph.graph, state.plan)
        self.limit = BUDGET * sum(self.work.values())
        size = max(1, MEMORY // max(1, self.run.value_bytes()))
        self.batches = state.batches(min(SAMPLES, size), SAMPLES)
        self._real = [self._values(batch, frozenset()) for batch in self.batches]

    def work_of(self, nodes: Set[str]) -> float:
        """Return the work of some nodes."""
        return sum(self.work[n] for n in nodes)

    def rank(self, source: ErrorSource) -> float:
        """Return the share of a source for its work."""
        return source.share / max(1.0, self.work_of(source.nodes))

    def error(self, points: Set[str], most: float = math.inf) -> _Error:
        """Return the error with these points on; infinite if few batches have above `most`."""
        pairs, evidence = [], list(self.compared.values())
        few = math.inf
        for real, batch in zip(self._real, self.batches, strict=True):
            pairs.append((real, self._values(batch, points)))
            if len(pairs) == FEW and (few := worst_error(pairs, evidence)) > most:
                return _Error(few, math.inf)
        return _Error(few, worst_error(pairs, evidence))

    def _values(self, batch: Batch, points: Set[str]) -> list[torch.Tensor]:
        values = dict(self.run.stream(batch, points, self.compared))
        return [values[name] for name in self.compared]

    def error_of(self, plan: QuantPlan, most: float) -> _Error:
        """Return the error with the points of another plan of the same graph, as `error` does."""
        dropped = {p.name for p in self.state.plan} - {p.name for p in plan}
        return self.error(self.run.points - dropped, most)

    def plan(self, choice: _Choice) -> QuantPlan | None:
        """Return the plan with layers in float; None where it needs ranges that are not known."""
        state, old = self.state, self.state.plan
        assert state.calibration is not None
        target, recipe = targets.target(old.target), _with_rules(state, choice)
        try:
            plan = make_plan(
                state.graph.graph, target, old.observer, recipe, state.calibration.specs
            )
        except PlanError:  # all in float
            return None
        known = _calibration_for(state, plan) is not None
        return replace(plan, rewrites=old.rewrites) if known else None


def _calibration_for(state: ConversionState, plan: QuantPlan) -> Calibration | None:
    """Return the calibration with the ranges of a plan of the same graph; None where one is not
    known. A tensor between a layer in float and one in integers is quantized behind the pool or
    reshape that moves it, and has there the range that it shared before."""
    old, calibration = state.plan, state.calibration
    assert calibration is not None
    specs, statistics = dict(calibration.specs), dict(calibration.statistics)
    for name in (p.name for p in plan.observed() if p.name not in statistics):
        root, factor = old.origin(name) if name in old else (name, 1.0)
        if root not in statistics or factor != 1:
            return None
        specs[name], statistics[name] = specs[root], statistics[root]
    return replace(calibration, specs=specs, statistics=statistics)


def propose(state: ConversionState) -> ConversionState:
    """Return the state with the layers in float that make most of the error."""
    recipe = state.plan.recipe
    if recipe.mode != "static" or recipe.slow_layers == INTEGER_LAYERS:
        return state
    network = _Network(state)
    if not network.batches:
        return state
    before = network.error(network.run.points)
    if _decibels(before.whole) >= GOOD_DB:
        return state
    poor = _decibels(before.whole) < POOR_DB
    sources = _worst_sources(network, poor)
    plan, choice, error = _choose(network, sources, before, _budget(network, poor))
    if plan is None or _decibels(error) - _decibels(before.whole) < WORTH_DB:
        return state
    layers = quantity(len(choice.nodes), "layer")
    note = f"{layers} computes" if len(choice.nodes) == 1 else f"{layers} compute"
    note += f" in float, for most of the error was theirs: {group_names(sorted(choice.nodes))}"
    calibration = _calibration_for(state, plan)
    after = replace(state, plan=plan, calibration=calibration, parameters=None).solved()
    if best_candidate(state, [after], JUDGES) is None:
        return state.with_notes(f"{SENSITIVE_LAYERS.name}: {LESS_ACCURATE}")
    return after.with_notes(note)


def _budget(network: _Network, poor: bool) -> Budget:
    """Return whether a choice costs little: no more work than `BUDGET`, and where the error is not
    large no more time than `SLOWER` and no more weights than `LARGER`."""
    state = network.state
    costs, graph = targets.target(state.plan.target).costs, state.graph.graph
    stored = stored_weights(graph, state.plan)
    before = 0.0 if costs is None else plan_time(graph, state.plan, costs)

    def allows(choice: _Choice, plan: QuantPlan) -> bool:
        little = network.work_of(choice.nodes) <= network.limit
        if poor or not little:
            return little
        larger = sum(stored.get(n, 0) for n in choice.weights) > LARGER * sum(stored.values())
        return costs is not None and not larger and plan_time(graph, plan, costs) <= before * SLOWER

    return allows


def _choose(
    network: _Network, sources: Sequence[ErrorSource], error: _Error, budget: Budget
) -> tuple[QuantPlan | None, _Choice, float]:
    """Return the plan with the layers in float that pay, these layers, and the error; None: none.

    Args:
        sources: tensors in the order to try them.
        error: error of the network as it is.
        budget: what a choice may cost.
    """
    best, chosen = None, _Choice()
    for source in (*sources, None):
        exact = replace(chosen, weights=chosen.nodes)  # what is left may be that of their weights
        choice = exact if source is None else chosen.with_source(source)
        plan = network.plan(choice) if choice != chosen else None
        if plan is None or not budget(choice, plan):
            continue
        new = network.error_of(plan, error.few * 10 ** (-STEP_DB / 20))  # half a step
        if _decibels(new.whole) - _decibels(error.whole) >= STEP_DB:
            best, chosen, error = plan, choice, new
    return best, chosen, error.whole


def _worst_sources(network: _Network, poor: bool) -> list[ErrorSource]:
    """Return the sources of most of the error for their work, the worst first. Those that no budget
    allows are not measured."""
    state, points = network.state, network.run.points
    own = {G.name_of(n) for n in G.calls(state.captured.for_target(state.plan.target)[0].graph)}
    calls = {G.name_of(n): n for n in G.calls(state.graph.graph)}
    sources = [_with_fused(state.plan, calls, s) for s in error_sources(state.plan, points, own)]
    sources = [s for s in sources if network.work_of(s.nodes) <= network.limit]
    sources = _likely(network, sources) if poor else _in_large_groups(network, sources)
    least = LEAST_SHARE if poor else LARGE_SHARE
    together = ErrorSource(frozenset(points), frozenset())
    for samples, most in ((FEW, 2 * TRIED), (SAMPLES, TRIED)):
        first = _first(network.batches, samples)
        whole, *errors = errors_alone(network.run, network.compared, first, [together, *sources])
        whole = max(whole, MIN_POWER)  # samples may have no error
        measured = [replace(s, share=e / whole) for s, e in zip(sources, errors, strict=True)]
        sources = sorted((s for s in measured if s.share >= least), key=network.rank, reverse=True)
        sources = sources[:most]
    return sources


def _likely(network: _Network, sources: list[ErrorSource]) -> list[ErrorSource]:
    """Return the sources that may be among the worst by an estimate of few samples, and those that
    it knows nothing of."""
    run, batches = network.run, list(_first(network.batches, FEW))
    few = len(sources) <= LIKELY
    errors = None if few else estimated_errors(run, network.compared, batches, sources)
    if errors is None:
        return sources
    together = ErrorSource(frozenset(run.points), frozenset())
    whole = max(*errors_alone(run, network.compared, batches, [together]), MIN_POWER)
    estimated = [replace(s, share=e / whole) for s, e in zip(sources, errors, strict=True)]
    worst = sorted((s for s in estimated if s.share >= LEAST_SHARE / 4), key=network.rank)
    return worst[::-1][: LIKELY + errors.count(math.inf)]


def _in_large_groups(network: _Network, sources: list[ErrorSource]) -> list[ErrorSource]:
    """Return the sources that may have a large share. Errors add up, so that none of a group with a
    small one has; a network has hundreds of sources, and a handful with a large share."""
    run, batches = network.run, list(_first(network.batches, FEW))
    together = [ErrorSource(frozenset(run.points), frozenset())]
    for size in (s for s in GROUPS if len(sources) > 4 * s):
        groups = [sources[i : i + size] for i in range(0, len(sources), size)]
        unions = [frozenset[str]().union(*(s.points for s in group)) for group in groups]
        each = together + [ErrorSource(union, frozenset()) for union in unions]
        whole, *errors = errors_alone(run, network.compared, batches, each)
        least = LARGE_SHARE / 2 * max(whole, MIN_POWER)  # few samples
        sources = [s for group, e in zip(groups, errors, strict=True) if e >= least for s in group]
    return sources


def _with_fused(plan: QuantPlan, calls: Mapping[str, fx.Node], source: ErrorSource) -> ErrorSource:
    """Return a source with the layers that its activation functions are part of."""
    nodes = set(source.nodes)
    for name in source.nodes:
        node, decision = calls[name], plan.decision(name)
        while decision is not None and decision.execution is Execution.FUSED:
            node = G.source(node)
            nodes.add(G.name_of(node))
            decision = plan.decision(G.name_of(node))
    return replace(source, nodes=frozenset(nodes))


def _with_rules(state: ConversionState, choice: _Choice) -> Recipe:
    """Return the recipe of a state with a rule for each layer in float."""
    calls = {G.name_of(n): n for n in G.calls(state.graph.graph)}
    target, recipe, rules = targets.target(state.plan.target), state.plan.recipe, []
    for name in sorted(choice.nodes):
        row = row_of(calls[name])
        stored = row is not None and weight_only.is_stored(row, target)
        scheme = _STORED if stored and name not in choice.weights else "float"
        rules.append(Rule(select=exact_selector(name), scheme=scheme))
    return replace(recipe, rules=(*recipe.rules, *rules))


def _first(batches: Sequence[Batch], samples: int) -> Iterator[Batch]:
    for batch in batches:
        if samples <= 0:
            return
        yield batch
        samples -= batch.size


def _decibels(error: float) -> float:
    """Return the SQNR in dB of a relative squared error."""
    return -10 * math.log10(max(error, MIN_POWER))
