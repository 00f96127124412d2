"""The Python API of the choice of layers by their speed on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qtool.api.conversion import convert
from qtool.api.conversion_inputs import capture_data
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.formats import format_of, own_format
from qtool.core.atomic import scratch_folder
from qtool.core.conversion_options import QuantizeKeywords, QuantizeOptions
from qtool.core.errors import OptionError
from qtool.core.log import unlogged
from qtool.core.option_names import suffixes_of
from qtool.core.option_records import keywords_of
from qtool.core.remedies import Omission
from qtool.distributed import current
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.speedup import timing_runtime
from qtool.frontends.captured_model import Captured, Model
from qtool.planning import targets
from qtool.planning.recipe import INTEGER_LAYERS, Recipe
from qtool.plugins.search.candidate_files import CandidateFiles
from qtool.plugins.search.choices import observers_of, search_space
from qtool.plugins.search.fastest_recipe import FastestRecipe, find_fastest
from qtool.plugins.search.tuning import calibrate_choices

if TYPE_CHECKING:
    from typing_extensions import Unpack


@keywords_of(QuantizeOptions, "measure")
def fastest_recipe(
    model: Model | Captured,
    data: Iterable[Any] | None,
    *,
    format: str | None = None,  # noqa: A002  # the usual name
    seconds: float = 1.0,
    **keywords: Unpack[QuantizeKeywords],
) -> FastestRecipe:
    """Measure which layers are faster in float on this machine, and return a recipe for that.

    The recipe makes the choice repeatable: `quantize` with it gives the same file everywhere. Only
    time counts here; `tune` weighs it against accuracy.

    Args:
        model, format: as for `quantize`.
        data: as for `quantize`; only its first batch is used.
        seconds: time limit for each file that is timed; at least a few runs are.
        keywords: as for `quantize`. The layers that rules of the recipe select are fixed, the
            others are chosen.

    Raises:
        DataError, CaptureError, PlanError: as for `quantize`.
        PlanError: the time on this target cannot be measured here.
        OptionError: there are several ranks.

    Example:
        >>> print(qtool.fastest_recipe(model, loader).recipe)
    """
    if current().is_distributed:
        raise OptionError("layers are timed in one process", Omission("--measure", "leave out {}"))
    how = QuantizeOptions(**keywords)
    target = how.target or targets.DEFAULT
    kind = format or own_format(targets.target(target))
    targets.check_format(target, kind)
    format_of(kind).check_measurable(targets.target(target))
    Recipe.of(*how.rules)  # errors before the model is captured
    with unlogged():
        captured, first, _ = capture_data(model, data, how.dynamic)
        whole = captured.recipe(target, *how.rules)
        # the steps change values, not times
        plan = captured.plan(
            target,
            how.observer,
            replace(whole, accuracy="fast", recover=(), slow_layers=INTEGER_LAYERS),
        )
        calibration = calibrate_choices(captured, [first], plan)
    graph, _ = captured.for_target(target)
    space = search_space(graph, plan, observers_of(plan), ())

    def converted(chosen: Recipe) -> QuantizedModel:
        return convert(captured, calibration, target=target, recipe=chosen, sample=first)

    suffix = suffixes_of(kind)[0]
    one = captured.graph.cut(captured.graph.bind(first), 1)
    with scratch_folder() as folder:
        baseline = Baseline(captured, folder, target, suffix)
        inputs = phases(baseline.timed, one.arrays())[-1].inputs
        pair = baseline.timed, baseline.profiled
        timed = pair[1], suffix, timing_runtime(target, suffix)
        files = CandidateFiles(folder, pair[0], inputs, seconds, converted, *timed)
        fastest = find_fastest(space, files)
    chosen = replace(whole, rules=fastest.recipe.rules, slow_layers=INTEGER_LAYERS)
    return replace(fastest, recipe=chosen)
