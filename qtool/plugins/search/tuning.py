"""The Python API of the mixed-precision search: `tune` and `explain`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from qtool.api.captured_source import by_input_name, data_module
from qtool.api.conversion import convert
from qtool.api.evaluation_check import check_evaluation_data
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.formats import format_of, open_file, own_format, runtime_title
from qtool.calibration.calibration import Calibration
from qtool.core.array_batches import whole_arrays
from qtool.core.atomic import scratch_folder
from qtool.core.conversion_options import DynamicSizes, QuantizeOptions, TuneKeywords
from qtool.core.data import Batch, batches, peek, whole_texts
from qtool.core.errors import DataError, OptionError
from qtool.core.frame_columns import in_column_order, input_columns, split_labels
from qtool.core.graph import FloatGraph
from qtool.core.option_names import NATIVE, suffixes_of
from qtool.core.option_records import keywords_of
from qtool.core.path_arguments import accepts_paths
from qtool.core.progress import no_progress
from qtool.core.remedies import CallEdit, DataEdit
from qtool.core.search_options import SearchOptions
from qtool.core.types import Progress
from qtool.distributed import current
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.fixed_inputs import check_fixed_inputs
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.machine import this_machine
from qtool.evaluation.same_model import check_same_model
from qtool.evaluation.speedup import timing_runtime
from qtool.evaluation.user_metrics import over_data
from qtool.frontends.captured_model import Captured, Model, capture_model
from qtool.frontends.data.table_remedies import columns_in_errors
from qtool.metrics.metric import check_drop
from qtool.planning import targets
from qtool.planning.plan import QuantPlan
from qtool.planning.recipe import ACCURACIES, DEFAULT_ACCURACY, INTEGER_LAYERS, MODES, Recipe
from qtool.planning.targets import check_format
from qtool.plugins.search.archive import Archive, data_digest
from qtool.plugins.search.candidate_files import CandidateFiles
from qtool.plugins.search.explain import Explainer
from qtool.plugins.search.explanation import Explanation
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Judge
from qtool.plugins.search.measured_model import calibrate_choices, sensitivity_samples
from qtool.plugins.search.search_loop import Search
from qtool.plugins.search.tune_result import TuneResult
from qtool.plugins.search.tuned_model import TunedModel, tuned_model

if TYPE_CHECKING:
    from typing_extensions import Unpack


@accepts_paths("archive")
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
    archive: str | Path | None = None,
    format: str | None = None,  # noqa: A002  # the usual name
    progress: Progress = no_progress,
    **keywords: Unpack[TuneKeywords],
) -> TunedModel:
    """Find the fastest (or smallest) quantized model within an accuracy budget.

    An additive model of errors and times proposes candidates; a few of them are converted and
    measured. The time of a decoder with a KV cache is that of a step. Ctrl-C or the end of the time
    budget ends the search with the best model so far.

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
        archive: folder that stores all measurements, so that the same search resumes from it.
            Measurements of another model or other data are refused.
        format: format of the files that are tried, as "qdq" or "tflite"; by default that of the
            target.
        progress: wraps the batches of the calibration, for a progress bar.
        keywords: as for `quantize`; recipe and ignore fix layers, recover replaces the levels.

    Raises:
        DataError: no data, or unusable data, labels or evaluation function.
        FileError: the archive belongs to another search, or cannot be written.
        PlanError: nothing can be chosen, or the time on this target cannot be measured here.
        KeyboardInterrupt: interrupted before the first evaluation.

    Example:
        >>> goals, few = qtool.TuneGoals(max_drop=0.01), qtool.SearchOptions(evaluations=3)
        >>> print(qtool.tune(model, loader, loader, labels, goals=goals, options=few))
    """
    started = time.monotonic()
    current().continue_on_rank_zero()
    how = QuantizeOptions(**keywords)
    target, observer = how.target or targets.DEFAULT, how.observer
    eval_data, labels = split_labels(eval_data, labels)
    eval_data = in_column_order(eval_data, input_columns(data))
    numbers = None if labels is None else np.asarray(labels)
    goals, options = goals or TuneGoals(), options or SearchOptions()
    records: tuple[tuple[object, type], ...] = ((goals, TuneGoals), (options, SearchOptions))
    for value, expected in records:
        if not isinstance(value, expected):
            name = expected.__name__
            raise OptionError(f"{value!s:.60} is no {name}", CallEdit(f"give qtool.{name}(...)"))
    if labels is not None and function is None:
        check_drop(goals.max_drop, percent=np.asarray(labels).dtype.kind in "biu")
    check_evaluation_data(model, data, eval_data, None if function is not None else labels)
    kind = _tried_format(target, format)
    format_of(kind).check_measurable(targets.target(target))
    data, eval_data = _reiterable(data), _reiterable(eval_data)
    if function is not None:
        function, eval_data, _ = over_data(function, eval_data, labels)
    first = next(batches(data, data_module(model)), None)
    if first is None:
        raise DataError("the calibration data is empty", DataEdit("give at least one batch"))
    with columns_in_errors(data, model, first):
        captured = capture_model(model, first, how.dynamic)
    format_of(kind).check_graph(captured.for_target(target)[0])
    recipes = _recipes(how, accuracy, options.choices)
    identity = {
        "model": captured.fingerprint,
        "calibration data": data_digest(data),
        "evaluation data": data_digest(eval_data, numbers),
        "metric": where if function is not None else "built in",
        "confidence": f"{goals.confidence:g}",
        "target": target,
        "observer": observer,
        "format": kind,
        "choice of groups": repr((options.choices, options.groups)),
        "machine": " ".join([this_machine().cpu, *_other_place(target, suffixes_of(kind)[0])]),
    }
    store = Archive(None if archive is None else Path(archive), identity)
    plan = captured.plan(target, observer, recipes[-1])
    calibration = _calibration(captured, data, store, plan, options, progress)

    def converted(chosen: Recipe) -> QuantizedModel:
        return convert(captured, calibration, target=target, recipe=chosen, sample=first)

    named = _NamedBatches(captured.graph, whole_texts(eval_data))

    def judge_of(reference: Path) -> Judge:
        return Judge(reference, named, numbers, function, where, lower_is_better, goals.confidence)

    suffix = suffixes_of(kind)[0]
    space = _Space(captured, first, data, target, suffix, recipes, converted, judge_of)
    result = _search(space, goals, options, store, started)
    return tuned_model(result, converted, suffix)


@accepts_paths("file", "repaired_file", models="file")
def explain(
    file: str | Path,
    model: Model | Captured,
    data: Iterable[Any],
    *,
    samples: Sequence[int] | None = None,
    most: int = 100,
    repaired_file: str | Path | None = None,
    dynamic: DynamicSizes | None = None,
    other_model: bool = False,
) -> Explanation:
    """Find the layers of an int8 file that cause changed predictions.

    Args:
        file: an int8 file that qtool wrote.
        model: its float model, as for `quantize`.
        data: batches; the first output of the model has to be [samples, classes] scores, or those
            of the next tokens of a language model.
        samples: numbers of samples, from 0; None: all with a changed prediction.
        most: maximum number of samples to explain.
        repaired_file: where to write a copy that keeps those layers in float, which restores the
            predictions of all explained samples.
        dynamic: see `capture_model`.
        other_model: accept a float model with other weights than the file was made from.

    Raises:
        DataError: no data, no scores, no such sample, or its prediction did not change.
        CalibrationError: the file lacks the range of a tensor that the repaired file quantizes.
        VerificationError: the file was not written by qtool, or is of another model.

    Example:
        >>> print(qtool.explain("model.int8.onnx", model, loader))
    """
    open_file(file)
    check_fixed_inputs(file, model)
    first, data = peek(data, model if isinstance(model, nn.Module) else None)
    if first is None:
        raise DataError("the data is empty", DataEdit("give at least one batch"))
    captured = capture_model(model, first, dynamic)
    if not other_model:
        check_same_model(file, captured, model)
    explainer = Explainer(Path(file), captured, first)
    stream = enumerate(batches(data, captured.graph.module))
    bound = (captured.graph.bind(b, i) for i, b in stream)
    explanation = explainer.explain(bound, samples, most)
    if hasattr(data, "sample_names"):
        explanation = explanation.named(data.sample_names())
    if repaired_file is not None:
        layers = dict.fromkeys(name for flip in explanation.flips for name in flip.layers)
        explainer.restored_model(tuple(layers)).export(repaired_file)
    return explanation


@dataclass(frozen=True, eq=False)
class _Space:
    """What a search chooses from, and what measures a choice.

    Attributes:
        captured: the float model.
        first: the first batch of `data`.
        data: calibration data.
        target: name of the target.
        suffix: file name extension of the files.
        recipes: a recipe for each accuracy level, the lowest first.
        convert: recipe -> its model.
        judge: float file -> what compares files with it.
    """

    captured: Captured
    first: Batch
    data: Iterable[Any]
    target: str
    suffix: str
    recipes: Sequence[Recipe]
    convert: Callable[[Recipe], QuantizedModel]
    judge: Callable[[Path], Judge]


def _search(
    space: _Space, goals: TuneGoals, options: SearchOptions, store: Archive, started: float
) -> TuneResult:
    """Search, with files in a scratch folder; of a decoder time the prompt of the best one, too."""
    captured, target = space.captured, space.target
    one = captured.graph.cut(captured.graph.bind(space.first), 1)
    with scratch_folder() as folder:
        baseline = Baseline(captured, folder, target, space.suffix)
        judge = space.judge(baseline.timed)
        each = phases([baseline.timed], one.arrays())
        place = timing_runtime(target, space.suffix)
        tried = CandidateFiles(
            folder,
            baseline.timed,
            each[-1].inputs,
            options.timing,
            space.convert,
            baseline.profiled,
            space.suffix,
            place,
        )
        samples = sensitivity_samples(captured, space.data, target)
        search = Search(
            tried, target, space.recipes, samples, judge, goals, options, store, started
        )
        timed_in = " ".join(_other_place(target, space.suffix))
        result = replace(search.run(), phase=each[-1].name, timed_in=timed_in)
        if len(each) > 1:
            files = (baseline.timed, tried.write(result.recipe))
            how = {"seconds": options.timing, "runtime": place}
            others = tuple(phase.time(files, **how) for phase in each[:-1])
            result = replace(result, timings=others)
    return replace(result, float_size=captured.file_bytes or result.float_size)


def _other_place(target: str, suffix: str) -> list[str]:
    """Return the runtime that files are timed in, if it is not that of their format."""
    place = timing_runtime(target, suffix)
    return [] if place == NATIVE else [runtime_title(place)]


def _tried_format(target: str, wanted: str | None) -> str:
    """Return the format of the files of a search: by default that of the target's own runtime.

    Raises:
        ExportError: the target does not have the format.
    """
    kind = wanted or own_format(targets.target(target))
    check_format(target, kind)
    return kind


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


def _calibration(
    captured: Captured,
    data: Iterable[Any],
    store: Archive,
    plan: QuantPlan,
    options: SearchOptions,
    progress: Progress,
) -> Calibration:
    """Return the calibration of a plan's choices from the archive if it is there, else calibrate
    and store it."""
    path = store.path("ranges.calib")
    if path is not None and path.exists():
        stored = Calibration.load(path)
        if stored.recipe == replace(plan.recipe, slow_layers=INTEGER_LAYERS):
            return stored
    calibration = calibrate_choices(captured, data, plan, options.choices, options.groups, progress)
    if path is not None:
        calibration.save(path)
    return calibration


class _NamedBatches:
    """Batches with tensors by the names of the inputs; every iteration reads the data again."""

    def __init__(self, graph: FloatGraph, data: Iterable[Any]) -> None:
        self.graph, self.data = graph, data

    def __iter__(self) -> Iterator[Batch]:
        return by_input_name(self.graph, self.data)
