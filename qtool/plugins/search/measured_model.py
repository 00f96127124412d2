"""The cost model of a search space, from measurements of files and single tensors.

The errors of single tensors come from one pass over some samples. The float values of every tensor
are computed once per chunk of samples. With one point switched on, only the part of the network
after it is computed again: half of it for an average tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.algorithms.pipeline import SOLVE
from qtool.algorithms.registry import samples_to_keep, select_steps
from qtool.api.conversion import probes_of_steps
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.data import Batch, batches
from qtool.core.graph.executor import Executor
from qtool.core.progress import no_progress, track, track_task
from qtool.core.store import Store
from qtool.core.types import Array, Observed, Progress
from qtool.evaluation.layer_facts import signal_and_noise
from qtool.evaluation.sensitivity import split_batch
from qtool.frontends.captured_model import Captured
from qtool.planning.plan import Kind, Probe, QuantPlan
from qtool.planning.recipe import Recipe
from qtool.plugins.search.archive import recipe_key
from qtool.plugins.search.candidate_files import CandidateFiles, file_bytes
from qtool.plugins.search.choices import Config, SearchSpace, search_space
from qtool.plugins.search.cost_model import CostModel, Item, extra_points, find_items, point_items
from qtool.plugins.search.layer_costs import NodeCosts, measure_costs, uniform_configs

SAMPLES, CHUNK = 64, 16  # to measure the sensitivity of layers on
SECONDS = 120.0
"""Time limit of the errors, after which the samples so far are used; at least one chunk is run."""


def measure_model(
    space: SearchSpace,
    files: CandidateFiles,
    samples: Sequence[Batch],
    known: Mapping[str, Quantized],
    store_of: Callable[[str], Store],
) -> CostModel:
    """Measure the cost model of a space.

    The steps that write rounded weights into the network are left out: with them, the float values
    of the network would contain their errors.

    Args:
        samples: samples for the errors of single tensors.
        known: quantized models by the key of their recipe with `named_steps`.
        store_of: returns the store of a key, for measurements.
    """
    items = find_items(space)
    plain = replace(space, recipe=_function_preserving(space.recipe))
    bare = replace(plain, recipe=replace(plain.recipe, recover=()))  # for timing only
    recipes = {c: plain.recipe_of(c) for c in uniform_configs(items)}
    models = {c: known.get(recipe_key(r)) or files.convert(r) for c, r in recipes.items()}
    store = store_of(f"{recipe_key(space.recipe)} {items.digest}")
    errors = point_errors(list(models.values()), items.points, samples, store)

    def write(config: Config) -> Path:
        model = models.get(config)
        return files.write((bare if model is None else plain).recipe_of(config), model)

    def measure() -> NodeCosts:
        pair = (files.float_file, files.profiled)
        return measure_costs(items, pair, write, files.inputs, files.timing, files.runtime)

    with track_task("times of single nodes"):
        costs = store.load_or_make("costs", NodeCosts, measure)
    float_size = file_bytes(files.float_file)
    sizes = {c: file_bytes(write(c)) for c in models}
    return CostModel(
        items=items,
        errors=np.array([errors.get(item, 0.0) for item in items.points]),
        times=np.array(costs.times),
        float_time=costs.float_time,
        boundary_us=costs.edge,
        boundary_element_us=costs.element,
        sizes=choice_sizes(space, models, sizes, float_size),
        float_size=float(float_size),
        error_scales=np.ones(len(space.groups)),
    )


def named_steps(recipe: Recipe) -> Recipe:
    """Return the recipe with its steps by name, so that equal sets of steps have equal keys."""
    names = tuple(step.name for step in select_steps(recipe) if step is not SOLVE)
    return replace(recipe, accuracy="fast", recover=names)


def _function_preserving(recipe: Recipe) -> Recipe:
    """Return the recipe with only the steps that keep the function of the network."""
    names = [step.name for step in select_steps(recipe)]
    return replace(recipe, accuracy="fast", recover=tuple(names[: names.index(SOLVE.name)]))


FLOAT_BITS, SCALE_BITS = 32, 32


def choice_sizes(
    space: SearchSpace,
    models: Mapping[Config, Quantized],
    whole: Mapping[Config, int],
    float_size: int,
) -> Array:
    """Return [choices of all groups] bytes of a choice minus those of float.

    The size of weights follows from the plan. Names and nodes add the same number of bytes for
    every layer of a choice, which is measured on one file with that choice for all layers.

    Args:
        models: quantized models by configuration; together they have every choice of every group.
        whole: bytes of their files.
    """
    starts = np.cumsum([0, *(len(g.choices) for g in space.groups)])
    sizes = np.zeros(starts[-1])
    known = np.zeros(starts[-1], bool)
    for config, model in models.items():
        stored = _weight_bytes(model)
        places, added = [], []
        for i, group in enumerate(space.groups):
            places.append(starts[i] + config[i])
            added.append(sum(stored.get(layer, 0.0) for layer in group.layers))
        overhead = (whole[config] - float_size - sum(added)) / len(added)
        for place, bytes_ in zip(places, added, strict=True):
            if not known[place]:
                sizes[place], known[place] = bytes_ + overhead, True
    return sizes


def _weight_bytes(model: Quantized) -> dict[str, float]:
    """Return bytes of the weights of each layer minus those in float; mostly negative."""
    nodes = {G.name_of(n): n for n in model.module.graph.nodes}
    sizes: dict[str, float] = {}
    for point in model.plan:
        if point.kind is not Kind.WEIGHT or not isinstance(point.spec, Observed):
            continue
        elements = G.tensor(model.module, nodes[point.edges[0].source]).numel()
        qtype, params = point.spec.qtype, model.parameters[point.name]
        bits = elements * (qtype.bits - FLOAT_BITS)
        bits += params.scale.numel() * (SCALE_BITS + qtype.bits)
        layer = point.edges[0].user
        sizes[layer] = sizes.get(layer, 0.0) + bits / 8
    return sizes


def point_errors(
    models: Sequence[Quantized],
    wanted: Sequence[Item],
    chunks: Sequence[Batch],
    store: Store,
) -> dict[Item, float]:
    """Return the noise-to-signal ratio of the outputs with each of these points alone.

    Args:
        models: quantized models; an item is measured in the first that has it, and left out if
            none has it.
        chunks: samples as the graph takes them, few at a time: all values of a chunk are held.
        store: store for the sums; an interrupted pass resumes after the last complete chunk.
    """
    model_of: dict[Item, int] = {}
    for number, model in enumerate(models):
        for item in sorted(point_items(model.plan) & set(wanted)):
            model_of.setdefault(item, number)
    items = list(model_of)
    sums, done = np.zeros((len(items), 2)), 0
    if (stored := store.load("errors")) is not None:
        sums, done = stored["sums"], int(stored["done"])
    executors = [Executor(replace(m.graph, module=m.module)) for m in models]
    start = time.monotonic()
    for number, chunk in enumerate(track("errors of single tensors", chunks, len(chunks))):
        if number < done or (done and time.monotonic() - start > SECONDS):
            continue
        for which, executor in enumerate(executors):
            own = {i: item for i, item in enumerate(items) if model_of[item] == which}
            sums += _signal_noise_sums(executor, chunk, own, len(items))
        done = number + 1
        store.save("errors", {"sums": sums, "done": np.array(done)})
    return {
        item: float(noise / signal) if signal else 0.0
        for item, (signal, noise) in zip(items, sums, strict=True)
    }


def _signal_noise_sums(
    executor: Executor, chunk: Batch, own: Mapping[int, Item], count: int
) -> Array:
    sums = np.zeros((count, 2))
    if not own:
        return sums
    real = executor.run(chunk, frozenset())
    for i, (point, _) in own.items():
        only = executor.rerun_changed(real, {point}, {point})
        for output in executor.outputs:
            after = only[output] if output in only else real[output]
            sums[i] += signal_and_noise(real[output], after)
    return sums


def calibrate_choices(
    captured: Captured,
    data: Iterable[Any],
    plan: QuantPlan,
    choices: Sequence[str] = (),
    groups: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Calibration:
    """Return the ranges that a plan and any choice for its layers need.

    Args:
        captured, data: the float model, and batches.
        plan, choices, groups: see `search_space`.
        progress: wraps the batches.
    """
    graph, _ = captured.for_target(plan.target)
    space = search_space(graph, plan, {}, choices, groups)
    whole = replace(space.plan(space.recipe), rewrites=plan.rewrites)
    own = {p.name for p in whole.observed()}
    others = {p.name: p for p in (*plan.observed(), *extra_points(space)) if p.name not in own}
    extra = (
        Probe(p.name, p.tensor, p.spec.observer)
        for p in others.values()
        if isinstance(p.spec, Observed)
    )
    steps = (*probes_of_steps(captured, whole), *probes_of_steps(captured, plan))
    probes = tuple({probe.name: probe for probe in (*steps, *extra)}.values())
    return collect_statistics(
        graph, whole, probes, data, captured.fingerprint, progress, samples_to_keep(whole)
    )


def sensitivity_samples(captured: Captured, data: Iterable[Any], target: str) -> list[Batch]:
    """Return the first samples, in chunks if the batch size is dynamic."""
    graph, _ = captured.for_target(target)
    chunks: list[Batch] = []
    splits = graph.can_split_batches
    for batch in batches(data, graph.module):
        chunks += split_batch(batch, CHUNK) if splits else [batch]
        if sum(b.size for b in chunks) >= SAMPLES:
            break
    return [graph.bind(b, i) for i, b in enumerate(chunks)]
