"""The choice of layers to leave in float by their speed on this machine, and its Python API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qtool.api.conversion import convert
from qtool.api.conversion_inputs import capture_data
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.formats import format_of, own_format
from qtool.core.atomic import scratch_folder, write_atomic
from qtool.core.conversion_options import QuantizeKeywords, QuantizeOptions
from qtool.core.errors import OptionError
from qtool.core.log import unlogged
from qtool.core.option_names import suffixes_of
from qtool.core.option_records import keywords_of
from qtool.core.remedies import Omission
from qtool.core.summary import Printed, group_names
from qtool.distributed import current
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.evaluation.speedup import timing_runtime
from qtool.frontends.captured_model import Captured, Model
from qtool.planning import targets
from qtool.planning.recipe import INTEGER_LAYERS, Recipe
from qtool.planning.targets import target
from qtool.plugins.search.candidate_files import CandidateFiles
from qtool.plugins.search.choices import (
    FLOAT,
    Config,
    SearchSpace,
    exact_selector,
    observers_of,
    search_space,
)
from qtool.plugins.search.cost_model import CostModel, find_items
from qtool.plugins.search.layer_costs import measure_costs
from qtool.plugins.search.measured_model import calibrate_choices

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
        inputs = phases([baseline.timed], one.arrays())[-1].inputs
        pair = baseline.timed, baseline.profiled
        timed = pair[1], suffix, timing_runtime(target, suffix)
        files = CandidateFiles(folder, pair[0], inputs, seconds, converted, *timed)
        fastest = find_fastest(space, files)
    chosen = replace(whole, rules=fastest.recipe.rules, slow_layers=INTEGER_LAYERS)
    return replace(fastest, recipe=chosen)


# The choice of layers to leave in float that is fastest on this machine.
#
# Single layers predict badly: what a chain of them gains is lost again where its neighbours are in
# float. So the times of nodes in both forms and of the boundaries between them are measured
# (`layer_costs`), the additive model of them is minimised, and the files of the minima are timed
# against the one with all layers in integers.


MIN_GAIN = 1.03
"""Least gain over all layers in integers that is worth a recipe; sessions differ by as much."""


@dataclass(frozen=True)
class FastestRecipe(Printed):
    """A recipe, and what was measured for it.

    Attributes:
        recipe: the given one, with a rule for each layer that stays in float.
        in_float: names of these layers.
        layers: number of layers to choose from.
        default: speed-up over float with all layers in integers.
        fastest: speed-up over float with this recipe.
    """

    recipe: Recipe
    in_float: tuple[str, ...]
    layers: int
    default: Ratio
    fastest: Ratio

    def __str__(self) -> str:
        before, after = (f"{ratio.median:.2f}x" for ratio in (self.default, self.fastest))
        text = f"the fastest choice has all layers in integers ({before})"
        if self.in_float:
            text = (
                f"{len(self.in_float)} of {self.layers} layers stay in float "
                f"({group_names(self.in_float)}), {before} -> {after}"
            )
        none = "; no choice is faster than float" if self.fastest.median < 1 else ""
        return f"measured here: {text}{none}"

    def save(self, path: str | Path) -> None:
        """Write the recipe as a .toml or .json file, which `quantize` reads.

        Raises:
            FileError: it cannot be written.
        """
        text = f"# {self}\n{self.recipe.to_toml()}"
        if Path(path).suffix == ".json":
            text = json.dumps(self.recipe.to_json(), indent=2) + "\n"
        write_atomic(path, text.encode())


def find_fastest(space: SearchSpace, files: CandidateFiles) -> FastestRecipe:
    """Return the fastest choice between the scheme of the recipe and float for each layer.

    At least one layer stays quantized. The result depends on this machine and its load.

    Args:
        space: groups of layers with two choices, their scheme and float.
        files: writes and times the files of recipes.

    Raises:
        VerificationError: the runtime refuses a file.
    """
    model = _time_model(space, files)
    default = space.default_config
    starts = (default, space.config(FLOAT), *space.alternating)
    minima = dict.fromkeys([default, *(_descend(model, start) for start in starts)])
    configs = [config for config in minima if not space.is_float(config)]
    ratios = files.speedups([files.write(space.recipe_of(config)) for config in configs])
    best = max(range(len(configs)), key=lambda i: ratios[i].median)
    if ratios[best].median < MIN_GAIN * ratios[0].median:
        best = 0
    config = configs[best]
    choices = zip(space.groups, space.choice_names(config), strict=True)
    in_float = tuple(name for g, choice in choices if choice == FLOAT for name in g.layers)
    count = sum(len(g.layers) for g in space.groups)
    recipe = _with_stored_weights(space, config)
    return FastestRecipe(recipe, in_float, count, ratios[0], ratios[best])


def _with_stored_weights(space: SearchSpace, config: Config) -> Recipe:
    """Return the recipe of a configuration whose convolutions in float read stored codes, which
    takes no more time."""
    recipe = space.recipe_of(config)
    if not target(space.target).file.dequantizes_once:
        return recipe
    layers = (n for group in space.groups if group.op == "conv" for n in group.layers)
    stored = {exact_selector(name) for name in layers}
    rules = [
        replace(r, scheme="int8-weights") if r.scheme == FLOAT and r.select in stored else r
        for r in recipe.rules
    ]
    return replace(recipe, rules=tuple(rules))


def _time_model(space: SearchSpace, files: CandidateFiles) -> CostModel:
    """Return the cost model of a space with its times alone."""
    items = find_items(space)

    def write(config: Config) -> Path:
        return files.write(space.recipe_of(config))

    pair = (files.float_file, files.profiled)
    costs = measure_costs(items, pair, write, files.inputs, files.timing, files.runtime)
    return CostModel(
        items=items,
        errors=np.zeros(len(items.points)),
        times=np.array(costs.times),
        float_time=costs.float_time,
        boundary_us=costs.edge,
        boundary_element_us=costs.element,
        sizes=np.zeros(len(items.choice_points)),
        float_size=0.0,
        error_scales=np.ones(len(space.groups)),
    )


def _descend(model: CostModel, start: Sequence[int]) -> Config:
    """Return the configuration where no change of one group is predicted to be faster, from a
    start; the one before it would be all float."""
    space = model.items.space
    last = np.array(space.config(FLOAT))
    config, groups = np.array(start), np.arange(len(space.groups))
    time = model.predict(config[None])[1][0]
    while True:
        changed: Any = np.tile(config, (len(groups), 1))
        changed[groups, groups] = last - changed[groups, groups]
        times = model.predict(changed)[1]
        order = [i for i in np.argsort(times) if not space.is_float(tuple(map(int, changed[i])))]
        if not order or times[order[0]] >= time:
            return tuple(map(int, config))
        config, time = changed[order[0]], times[order[0]]
