"""The Python API of the search: tune, and explain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from qtool.algorithms.registry import samples_to_keep
from qtool.api.conversion import convert, probes_of_steps
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.onnxruntime.cpu import runs_here
from qtool.calibration.calibration import Calibration
from qtool.calibration.collect import collect_statistics
from qtool.core.atomic import scratch_folder, write_atomic
from qtool.core.data import Batch, batches, peek
from qtool.core.errors import DataError, FileError, PlanError
from qtool.core.graph import FloatGraph
from qtool.core.path_arguments import accepts_paths
from qtool.core.types import Array, Observed, Progress
from qtool.distributed import current
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.sensitivity import split_batch
from qtool.evaluation.restored_model import read_onnx
from qtool.frontends.captured_model import (
    DEFAULT_OBSERVER,
    Captured,
    DynamicSizes,
    Model,
    capture_model,
)
from qtool.planning import targets
from qtool.planning.plan import Probe, QuantPlan
from qtool.planning.recipe import ACCURACIES, DEFAULT_ACCURACY, Recipe
from qtool.search.archive import Archive, data_digest
from qtool.search.choices import search_space
from qtool.search.cost_model import extra_points
from qtool.search.explain import Explainer
from qtool.search.explanation import Explanation
from qtool.search.goals import TuneGoals
from qtool.search.judge import Judge
from qtool.search.search_loop import Search
from qtool.search.search_options import SearchOptions
from qtool.search.tune_result import TuneResult

SAMPLES, CHUNK = 64, 16


class TunedModel(TuneResult):
    """The result of a search, and its models."""

    convert: Callable[[Recipe], QuantizedModel]
    write_float: Callable[[Path], Path]

    def quantized(self, key: str | None = None) -> QuantizedModel:
        """Return the best model, or the one of another evaluation.

        Raises:
            PlanError: it is the float model itself, of which `export` writes a file.
        """
        return self.convert(self.recipes[key or self.best.key])

    def export(self, path: str | Path, key: str | None = None) -> None:
        """Write the best model, or the one of another evaluation, verified; where it is the float
        model itself, that one.

        Raises:
            FileError: it cannot be written. VerificationError: a file does not do what is planned.
        """
        if (key or self.best.key) == self.unquantized:
            self.write_float(Path(path))
        else:
            self.quantized(key).export(path, timing=0)

    def recipe_text(self, suffix: str = ".toml", key: str | None = None) -> str:
        """Return a recipe as the text of a file, which `quantize` reads."""
        recipe = self.recipes[key or self.best.key]
        if suffix == ".json":
            return json.dumps(recipe.to_json(), indent=2) + "\n"
        found = next(e for e in self.evaluated if e.key == (key or self.best.key))
        said = f"{found.speedup:.2f}x as fast as float, {found.size} bytes, {found.score.text}"
        return f"# Written by qtool tune: {said}\n{recipe.to_toml()}"

    @accepts_paths("path", "front", "page", "recipe")
    def save(
        self,
        path: str | Path,
        *,
        front: str | Path | None = None,
        page: str | Path | None = None,
        recipe: str | Path | None = None,
    ) -> None:
        """Write the best model, and on request what else the search found.

        Args:
            path: file for the best model, see `export`.
            front: folder for the models of the Pareto front, see `write_front`.
            page: .html file with the front, the choice for each layer and all evaluations.
            recipe: .toml or .json file for the recipe of the best model.

        Raises:
            FileError: a file cannot be written.
            VerificationError: a file does not compute what was planned.
        """
        self.export(path)
        if front is not None:
            self.write_front(front)
        if page is not None:
            from qtool.search.report_page import tune_page  # loads matplotlib

            write_atomic(page, tune_page(self, Path(path).stem))
        if recipe is not None:
            write_atomic(recipe, self.recipe_text(Path(recipe).suffix).encode())

    @accepts_paths("folder")
    def write_front(self, folder: str | Path) -> None:
        """Write every model of the Pareto front, verified, each with its recipe next to it.

        Raises:
            FileError: it cannot be written. VerificationError: a file does not do what is planned.
        """
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write {place}: {error.strerror or error}") from error
        numbers = {e.key: e.number for e in self.evaluated}
        for key in self.front:
            name = place / f"{numbers[key]:02d}"
            kind = ".float.onnx" if key == self.unquantized else ".int8.onnx"
            self.export(name.with_suffix(kind), key)
            write_atomic(name.with_suffix(".toml"), self.recipe_text(".toml", key).encode())


@accepts_paths("archive")
def tune(
    model: Model | Captured,
    data: Iterable[Any],
    eval_data: Iterable[Any],
    labels: Array | None = None,
    *,
    goals: TuneGoals | None = None,
    options: SearchOptions | None = None,
    function: Callable[[Any], Any] | None = None,
    where: str = "the evaluation function",
    lower_is_better: Sequence[str] = (),
    target: str = targets.DEFAULT,
    observer: str = DEFAULT_OBSERVER,
    recipe: Any = None,
    accuracy: Sequence[str] = ("fast", "balanced"),
    recover: Iterable[str] | None = None,
    dynamic: DynamicSizes | None = None,
    archive: str | Path | None = None,
    progress: Progress = lambda x: x,
) -> TunedModel:
    """Find the fastest (or smallest) int8 model within an accuracy budget.

    An additive model of errors and times finds candidates, and a few are evaluated for real.
    Ctrl-C ends the search with the best model so far; so does the end of the budget.

    Args:
        model: as for `quantize`.
        data: what to calibrate on, read several times.
        eval_data, labels: what files are judged on, as for `evaluate`, read several times.
        goals: what has to be kept; by default no more than a hundredth of the metric is lost.
        options: what may be chosen, and how long is searched.
        function, where, lower_is_better: the user's metric, as `ReportOptions` has it; the first
            one that it returns counts.
        target, observer: as for `quantize`.
        recipe: what holds for the layers that it speaks of; the others are chosen for.
        accuracy: the levels of recovery to choose from.
        recover: the steps of recovery, by name, in place of levels.
        dynamic: see `capture_model`.
        archive: a folder that keeps what is found out. A search that ended in any way goes on
            there; results of another model or of other data are refused.
        progress: wraps the batches of the calibration, for a progress bar.

    Raises:
        DataError: no data, or data, labels or function are of no use.
        FileError: the archive holds results of something else, or cannot be written.
        PlanError: nothing can be chosen, or the time on this target cannot be measured here.
        KeyboardInterrupt: it was interrupted before anything was evaluated.
    """
    current().continue_on_rank_zero()
    wanted, asked = (goals or TuneGoals()).bounded, options or SearchOptions()
    if not runs_here(targets.target(target)):
        raise PlanError(
            f"a search measures time, and files for {target} do not run in ONNX Runtime here; "
            "choose its target"
        )
    data, eval_data = _again(data), _again(eval_data)
    first = next(batches(data), None)
    if first is None:
        raise DataError("the calibration data is empty; give at least one batch")
    captured = capture_model(model, first, dynamic)
    recipes = _recipes(recipe, accuracy, recover)
    kept = Archive(
        None if archive is None else Path(archive),
        {
            "model": captured.fingerprint,
            "calibration data": data_digest(data),
            "evaluation data": data_digest(eval_data, labels),
            "metric": where if function is not None else "built in",
            "confidence": f"{wanted.confidence:g}",
            "target": target,
            "observer": observer,
            "choice of groups": repr((asked.choices, asked.groups)),
            "machine": this_machine().cpu,
        },
    )
    plan = captured.plan(target, observer, recipes[-1])
    calibration = _calibration(captured, data, kept, plan, asked, progress)
    graph, _ = captured.for_target(target)
    samples = [graph.bind(b, i) for i, b in enumerate(_few(data, graph))]

    def converted(chosen: Recipe) -> QuantizedModel:
        return convert(captured, calibration, target=target, recipe=chosen, sample=first)

    with scratch_folder() as folder:
        plain = captured.export_float(folder / "float.onnx", target)
        shown = _Named(captured.graph, eval_data)
        judge = Judge(plain, shown, labels, function, where, lower_is_better, wanted.confidence)
        inputs = _one_sample(captured.graph, first)
        search = Search(
            plain, target, inputs, recipes, converted, samples, judge, wanted, asked, kept
        )
        found = TunedModel(**vars(search.run(folder)))
    object.__setattr__(found, "convert", converted)  # of a frozen class: no fields of the result
    object.__setattr__(found, "write_float", lambda path: captured.export_float(path, target))
    return found


@accepts_paths("file", "mended")
def explain(
    file: str | Path,
    model: Model | Captured,
    data: Iterable[Any],
    *,
    samples: Sequence[int] | None = None,
    most: int = 100,
    mended: str | Path | None = None,
    dynamic: DynamicSizes | None = None,
) -> Explanation:
    """Find the layers of an int8 file that cause changed predictions.

    Args:
        file: an int8 file that qtool made. model: its float model, as for `quantize`.
        data: batches; the first output of the model has to be a list of scores.
        samples: numbers of samples, from 0; None: all whose answer changed.
        most: how many samples are explained at most.
        mended: writes the file with the layers in float that bring all of these answers back.
        dynamic: see `capture_model`.

    Raises:
        DataError: no data, no scores, no such sample, or its answer did not change.
        CalibrationError: a tensor of the mended file needs a range that the file does not hold.
        VerificationError: the file was not made by qtool, or from another model.
    """
    first, data = peek(data, model if isinstance(model, nn.Module) else None)
    if first is None:
        raise DataError("the data is empty; give at least one batch")
    captured = capture_model(model, first, dynamic)
    read_onnx(file)
    explainer = Explainer(Path(file), captured, first)
    found = explainer.explain(
        (captured.graph.bind(b, i) for i, b in enumerate(batches(data, captured.graph.module))),
        samples,
        most,
    )
    if mended is not None:
        layers = dict.fromkeys(name for flip in found.flips for name in flip.layers)
        explainer.restored_model(tuple(layers)).export(mended)
    return found


def _again(data: Iterable[Any]) -> Any:
    """Return data that can be read more than once."""
    return list(data) if iter(data) is data else data


def _recipes(recipe: Any, accuracy: Sequence[str], recover: Iterable[str] | None) -> list[Recipe]:
    """Return a recipe for each accuracy level, the lowest first."""
    if recover is not None:
        return [Recipe.of(recipe, None, None, list(recover))]
    given = Recipe.of(recipe)
    if given.recover is not None or given.accuracy != DEFAULT_ACCURACY:
        return [given]
    levels = sorted(dict.fromkeys(accuracy), key=lambda a: ACCURACIES.get(a, 0))
    return [Recipe.of(recipe, None, level) for level in levels]


def _calibration(
    captured: Captured,
    data: Iterable[Any],
    kept: Archive,
    plan: QuantPlan,
    options: SearchOptions,
    progress: Progress,
) -> Calibration:
    """That of the most thorough recipe, with the ranges that any choice needs; from the archive
    where it lies there."""
    path = kept.path("ranges.calib")
    if path is not None and path.exists():
        found = Calibration.load(path)
        if found.recipe == plan.recipe:
            return found
    graph, _ = captured.for_target(plan.target)
    space = search_space(graph, plan, {}, options.choices, options.groups)
    also = (
        Probe(p.name, p.tensor, p.spec.observer)
        for p in extra_points(space)
        if isinstance(p.spec, Observed)
    )
    probes = (*probes_of_steps(captured, plan), *also)
    mark, keep = captured.fingerprint, samples_to_keep(plan)
    made = collect_statistics(graph, plan, probes, data, mark, progress, keep)
    if path is not None:
        made.save(path)
    return made


def _few(data: Iterable[Any], graph: FloatGraph) -> list[Batch]:
    """Return the first samples, in chunks if the batch size is dynamic."""
    found: list[Batch] = []
    splits = graph.can_split_batches
    for batch in batches(data, graph.module):
        found += split_batch(batch, CHUNK) if splits else [batch]
        if sum(b.size for b in found) >= SAMPLES:
            break
    return found


def _one_sample(graph: FloatGraph, first: Batch) -> list[Any]:
    """Return one sample if the batch size is dynamic, else the first batch."""
    tensors = [t for _, t in graph.bind(first).tensors()]
    free = [bool(i.shape) and isinstance(i.shape[0], str) for i in graph.inputs]
    return [(t[:1] if f else t).cpu().numpy() for t, f in zip(tensors, free, strict=True)]


class _Named:
    """Batches with tensors by the names of the inputs; every iteration reads the data again."""

    def __init__(self, graph: FloatGraph, data: Iterable[Any]) -> None:
        self.graph, self.data = graph, data

    def __iter__(self) -> Iterator[Batch]:
        names = [i.name for i in self.graph.inputs]
        for index, batch in enumerate(batches(self.data, self.graph.module)):
            tensors = (t for _, t in self.graph.bind(batch, index).tensors())
            yield Batch((), dict(zip(names, tensors, strict=True)))
