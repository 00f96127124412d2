"""The Python API of the mixed-precision search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from qtool.algorithms.error_sources import IN_CODES
from qtool.algorithms.registry import samples_to_keep
from qtool.api.captured_source import by_input_name
from qtool.api.conversion import convert, probes_of_steps
from qtool.api.conversion_inputs import data_module, sizes_of_data
from qtool.api.evaluation_check import check_evaluation_data
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.formats import format_of, own_format, runtime_title
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.core import graph as G
from qtool.core.array_batches import whole_arrays
from qtool.core.atomic import scratch_folder
from qtool.core.conversion_options import QuantizeOptions, TuneKeywords
from qtool.core.data import Batch, batches, peek, whole_texts
from qtool.core.errors import DataError, OptionError, PlanError
from qtool.core.frame_columns import in_column_order, input_columns, split_labels
from qtool.core.graph import FloatGraph
from qtool.core.option_names import NATIVE, suffixes_of, unknown_name
from qtool.core.option_records import keywords_of
from qtool.core.progress import no_progress
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.search_options import SearchOptions
from qtool.core.types import Observed, Progress
from qtool.distributed import current
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.sensitivity import split_batch
from qtool.evaluation.speedup import timing_runtime
from qtool.evaluation.user_metrics import over_data
from qtool.frontends.captured_model import Captured, Model, capture_model
from qtool.metrics.metric import check_drop
from qtool.planning import targets
from qtool.planning.plan import Probe, QuantPlan
from qtool.planning.recipe import ACCURACIES, DEFAULT_ACCURACY, INTEGER_LAYERS, MODES, Recipe, Rule
from qtool.planning.targets import check_format
from qtool.plugins.search.candidate_files import CandidateFiles, file_bytes
from qtool.plugins.search.choices import CHOICES, FLOAT, layers_of
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Judge
from qtool.plugins.search.search import Search, Subject
from qtool.plugins.search.tuned_model import SearchPlace, TunedModel

if TYPE_CHECKING:
    from typing_extensions import Unpack


@keywords_of(QuantizeOptions, "mode")
def tune(
    model: Model | Captured,
    data: Iterable[Any],
    eval_data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    goals: TuneGoals | None = None,
    options: SearchOptions | None = None,
    function: Callable[[Any], Any] | None = None,
    where: str = "the evaluation function",
    lower_is_better: Sequence[str] = (),
    accuracy: Sequence[str] = ("fast", "balanced"),
    format: str | None = None,  # noqa: A002  # the usual name
    progress: Progress = no_progress,
    **keywords: Unpack[TuneKeywords],
) -> TunedModel:
    """Find the fastest (or smallest) quantized model within an accuracy budget.

    Layers that cost much accuracy get another precision, the most sensitive ones first. A few files
    are converted and measured. The time of a decoder with a KV cache is that of a step.
    Ctrl-C or the end of the time budget ends the search with the best model so far.

    Args:
        model: as for `quantize`.
        data: batches to calibrate on; read several times.
        eval_data, labels: what the accuracy is measured on, as for `evaluate`; read several times.
            Without labels a causal language model is judged by its perplexity, any other by the
            agreement with the float model.
        goals: what the model has to meet; by default a loss of at most one point of a share, of 1 %
            of another metric.
        options: the precisions to choose from, and the limits of the search.
        function, where, lower_is_better: your own metric, see `ReportOptions`; the first metric
            that it returns is the one of the goals.
        accuracy: the recovery levels to choose from.
        format: format of the files that are tried, as "qdq" or "tflite"; by default that of the
            target.
        progress: wraps the batches of the calibration, for a progress bar.
        keywords: as for `quantize`; recipe and ignore fix layers, recover replaces the levels.

    Raises:
        DataError: no data, or unusable data, labels or evaluation function.
        PlanError: nothing can be chosen, or the time on this target cannot be measured here.
        KeyboardInterrupt: interrupted before the first evaluation.

    Example:
        >>> goals, few = qtool.TuneGoals(max_drop=0.01), qtool.SearchOptions(evaluations=3)
        >>> print(qtool.tune(model, loader, loader, labels, goals=goals, options=few))
    """
    started = time.monotonic()
    current().continue_on_rank_zero()
    how = QuantizeOptions(**keywords)
    target = how.target or targets.DEFAULT
    goals, options = goals or TuneGoals(), options or SearchOptions()
    _check_records(goals, options)
    eval_data, labels = split_labels(eval_data, labels)
    eval_data = in_column_order(eval_data, input_columns(data))
    numbers = None if labels is None else np.asarray(labels)
    if numbers is not None and function is None:
        check_drop(goals.max_drop, percent=numbers.dtype.kind in "biu")
    check_evaluation_data(model, data, eval_data, None if function is not None else labels)
    kind = format or own_format(targets.target(target))
    check_format(target, kind)
    format_of(kind).check_measurable(targets.target(target))
    data, eval_data = _reiterable(data), _reiterable(eval_data)
    if function is not None:
        function, eval_data, _ = over_data(function, eval_data, labels)
    ahead, _ = peek(data, data_module(model))
    if not ahead:
        raise DataError("the calibration data is empty", DataEdit("give at least one batch"))
    captured = capture_model(model, ahead[0], sizes_of_data(model, ahead, how.dynamic))
    format_of(kind).check_graph(captured.for_target(target)[0])
    network = _Network(captured, ahead[0], target, how.observer, suffixes_of(kind)[0])
    recipes = _recipes(how, accuracy, options.choices)
    plans = _plans(network, recipes, options.choices)
    calibration = calibrate_plans(captured, data, plans, progress)

    def converted(chosen: Recipe) -> QuantizedModel:
        return convert(captured, calibration, target=target, recipe=chosen, sample=ahead[0])

    named = _NamedBatches(captured.graph, whole_texts(eval_data))

    def judge_of(reference: Path) -> Judge:
        return Judge(reference, named, numbers, function, where, lower_is_better, goals.confidence)

    subject = Subject(
        recipes,
        layers_of(plans[-1]),
        partial(_plan_of, network, calibration),
        _samples(network, data),
    )
    search = partial(Search, goals=goals, options=options, subject=subject)
    return _search(network, converted, judge_of, search, options, started)


def _check_records(*values: object) -> None:
    """Check that goals and options are records, not dicts."""
    for value, expected in zip(values, (TuneGoals, SearchOptions), strict=True):
        if not isinstance(value, expected):
            name = expected.__name__
            raise OptionError(f"{value!s:.60} is no {name}", CallEdit(f"give qtool.{name}(...)"))


@dataclass(frozen=True, eq=False)
class _Network:
    """The network of a search.

    Attributes:
        captured: the float model.
        first: the first batch of the calibration data.
        target, observer: those of the files.
        suffix: file name extension of the files.
    """

    captured: Captured
    first: Batch
    target: str
    observer: str
    suffix: str

    def plan(self, recipe: Recipe) -> QuantPlan:
        return self.captured.plan(self.target, self.observer, recipe)


def _plan_of(network: _Network, calibration: Calibration, recipe: Recipe) -> QuantPlan:
    """Return the plan of a recipe, with the observers of the calibration."""
    captured, specs = network.captured, calibration.specs
    return captured.plan(network.target, network.observer, recipe, seen=specs)


def _plans(network: _Network, recipes: Sequence[Recipe], choices: Sequence[str]) -> list[QuantPlan]:
    """Return the plans that files of a search are mixed from: those of the levels, those with each
    choice for all layers, and last that with all layers in the precision of the mode.

    Raises:
        PlanError: an unknown choice.
    """
    plans = [network.plan(recipe) for recipe in recipes]
    whole = replace(recipes[-1], slow_layers=INTEGER_LAYERS)
    for name in choices:
        if name not in CHOICES:
            raise PlanError(unknown_name("choice", name, CHOICES))
        if name != FLOAT:
            rules = (Rule(select="*", **CHOICES[name]), *whole.rules)
            with suppress(PlanError):  # no layer has it
                plans.append(network.plan(replace(whole, rules=rules)))
    return [*plans, network.plan(whole)]


def _search(
    network: _Network,
    converted: Callable[[Recipe], QuantizedModel],
    judge_of: Callable[[Path], Judge],
    search: Callable[..., Search],
    options: SearchOptions,
    started: float,
) -> TunedModel:
    """Search, with files in a scratch folder; of a decoder time the prompt of the best one, too.

    Args:
        converted: recipe -> its model.
        judge_of: float file -> what compares files with it.
        search: files and judge -> the search.
        options: its limits.
        started: when the budget began.
    """
    captured, target, suffix = network.captured, network.target, network.suffix
    one = captured.graph.cut(captured.graph.bind(network.first), 1)
    with scratch_folder() as folder:
        timed = Baseline(captured, folder, target, suffix).timed
        each, runtime = phases([timed], one.arrays()), timing_runtime(target, suffix)
        loop = search(
            files=CandidateFiles(
                folder, timed, each[-1].inputs, options.timing, converted, suffix, runtime
            ),
            judge=judge_of(timed),
        )
        size = captured.file_bytes or file_bytes(timed)
        place = SearchPlace(target, size, _runtime(target, suffix), each[-1].name)
        result = loop.run(started, place)
        if len(each) > 1:
            files = (timed, loop.files.write(result.recipe))
            how = {"seconds": options.timing, "runtime": runtime}
            others = tuple(phase.time(files, **how) for phase in each[:-1])
            result = replace(result, place=replace(place, timings=others))
    return result


def _runtime(target: str, suffix: str) -> str:
    """Return the runtime that files are timed in, if it is not that of their format, else ""."""
    place = timing_runtime(target, suffix)
    return "" if place == NATIVE else runtime_title(place)


def _reiterable(data: Iterable[Any]) -> Any:
    """Return data that can be read more than once."""
    data = whole_arrays(data)
    return list(data) if iter(data) is data else data


def _recipes(how: QuantizeOptions, accuracy: Sequence[str], choices: Sequence[str]) -> list[Recipe]:
    """Return a recipe for each accuracy level, the lowest first.

    Its mode is a choice of every layer: where the default is none, the first one that is a mode.
    """
    recipe = Recipe.of(how.recipe, ignore=how.ignore)
    modes = [name for name, scheme in MODES.items() if scheme in choices]
    mode = modes[0] if modes and recipe.mode == next(iter(MODES)) else None
    if how.recover is not None:
        return [Recipe.of(recipe, mode, None, list(how.recover))]
    if recipe.recover is not None or recipe.accuracy != DEFAULT_ACCURACY:
        return [Recipe.of(recipe, mode)]
    levels = sorted(dict.fromkeys(accuracy), key=lambda a: ACCURACIES.get(a, 0))
    return [Recipe.of(recipe, mode, level) for level in levels]


SAMPLES, CHUNK = 32, 8  # that the errors of single tensors are measured on, and of a batch


def _samples(network: _Network, data: Iterable[Any]) -> list[Batch]:
    """Return the first samples, in chunks if the batch size is dynamic."""
    graph, _ = network.captured.for_target(network.target)
    chunks: list[Batch] = []
    for batch in batches(data, graph.module):
        chunks += split_batch(batch, CHUNK) if graph.can_split_batches else [batch]
        if sum(b.size for b in chunks) >= SAMPLES:
            break
    return [graph.bind(b, i) for i, b in enumerate(chunks)]


def calibrate_plans(
    captured: Captured,
    data: Iterable[Any],
    plans: Sequence[QuantPlan],
    progress: Progress = no_progress,
) -> Calibration:
    """Return the ranges that any mix of plans of a network needs.

    Args:
        captured, data: the float model, and batches.
        plans: the plans; every tensor around a node on codes in one of them is observed, since it
            is quantized where the node next to it computes in float.
        progress: wraps the batches.
    """
    graph, _ = captured.for_target(plans[-1].target)
    whole, nodes = plans[-1], {G.name_of(n): n for n in graph.graph.nodes}
    probes = {probe.name: probe for plan in plans for probe in probes_of_steps(captured, plan)}
    for plan in plans:
        for point in plan.observed():
            assert isinstance(point.spec, Observed)
            probes.setdefault(point.name, Probe(point.name, point.tensor, point.spec.observer))
        for name in (d.node for d in plan.nodes if d.execution in IN_CODES):
            for node in (nodes[name], *nodes[name].all_input_nodes):
                if G.is_float(node) and node.op != "get_attr":
                    own = G.name_of(node)
                    probes.setdefault(own, Probe(own, own, plan.observer))
    own_points = {p.name for p in whole.observed()}
    more = tuple(probe for name, probe in probes.items() if name not in own_points)
    samples = max(map(samples_to_keep, plans))
    return collect_statistics(graph, whole, more, data, captured.fingerprint, progress, samples)


class _NamedBatches:
    """Batches with tensors by the names of the inputs; every iteration reads the data again."""

    def __init__(self, graph: FloatGraph, data: Iterable[Any]) -> None:
        self.graph, self.data = graph, data

    def __iter__(self) -> Iterator[Batch]:
        return by_input_name(self.graph, self.data)
