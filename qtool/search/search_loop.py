"""The search: an additive model says where to look, few real evaluations decide.

Whole-model choices come first (how much the conversion recovers): each is evaluated with nothing
chosen, and the most exact one is searched further. Where a goal bounds what may be lost, the front
is searched for the cheapest file that keeps it, by bisection of the noise between those that did
and those that did not; where none does, or the whole front is wanted, the evaluations go where they
promise most. After each the model is corrected. The last candidate is the float model itself. At
the end those that might be the fastest are timed beside each other. A search can be ended at any
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from qtool.algorithms.pipeline import SOLVE
from qtool.algorithms.registry import select_steps
from qtool.backends.onnx.storage import model_files
from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch
from qtool.core.errors import CalibrationError, PassError, PlanError, QtoolError
from qtool.core.limits import Range, check_fields
from qtool.core.progress import track_task
from qtool.core.types import Array
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.planning.recipe import Recipe
from qtool.search.archive import Archive, Trial, recipe_key
from qtool.search.choices import FLOAT, Config, SearchSpace, observers_of, search_space
from qtool.search.cost_model import CostModel, find_items
from qtool.search.expected_improvement import most_promising
from qtool.search.file_sizes import choice_sizes
from qtool.search.finalists import time_finalists
from qtool.search.goals import TuneGoals
from qtool.search.judge import Judge
from qtool.search.layer_costs import NodeCosts, measure_costs, uniform_configs
from qtool.search.measured_speedups import measure_speedups
from qtool.search.model_correction import correlation, fit_scales
from qtool.search.next_candidate import Observation, next_candidate, quantize_more
from qtool.search.pareto_front import pareto_front
from qtool.search.tensor_errors import point_errors
from qtool.search.tune_result import TuneResult, front_keys, group_choices

TIMING = 0.5
MAX_REQUANTIZED = 2  # evaluations for files that leave less in float
NOISE_FLOOR = 1e-30  # of noise, so that its logarithm is a number
FLOAT_RATIO = Ratio(1.0, 1.0, 1.0, 1.0, 1.0)
RANGES = {
    "evaluations": Range(low=1, whole=True),
    "budget": Range(low=0),
    "timing": Range(low=0),
}


@dataclass(frozen=True)
class SearchOptions:
    """choices: names of CHOICES that layers may have beside float. groups: globs of layers that are
    chosen for together. evaluations: at most. budget: seconds. front: what evaluations the goal
    leaves over explore the front. timing: seconds for the time of each file.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    choices: tuple[str, ...] = ("static", "dynamic", "int8-weights")
    groups: tuple[str, ...] = ()
    evaluations: int = 20
    budget: float | None = None
    front: bool = False
    timing: float = TIMING

    def __post_init__(self) -> None:
        check_fields(self, RANGES)


class Search:
    """One search. `run` may be called once."""

    def __init__(
        self,
        float_file: Path,
        target: str,
        inputs: Sequence[Array],
        recipes: Sequence[Recipe],
        convert: Callable[[Recipe], Quantized],
        samples: Sequence[Batch],
        judge: Judge,
        goals: TuneGoals,
        options: SearchOptions,
        archive: Archive,
    ) -> None:
        """
        Args:
            float_file: the float model.
            inputs: of one run, to time files with.
            recipes: the whole-model choices: each says what holds where nothing is chosen.
            convert: makes a quantized model by a recipe.
            samples: that the errors of single tensors are measured on.
            judge: knows the evaluation data.
        """
        self.float_file, self.target, self.inputs = float_file, target, inputs
        self.recipes, self.convert = recipes, convert
        self.samples, self.judge = samples, judge
        self.goals, self.options, self.archive = goals, options, archive
        self.started = time.monotonic()
        self.trials: dict[str, Trial] = {}
        self.tried_recipes: dict[str, Recipe] = {}
        self.finalists: tuple[Trial, ...] = ()
        self.bases: dict[str, Quantized] = {}
        self.refused: set[Config] = set()
        self.new_trials = self.requantized = 0
        self.notes: list[str] = []
        self.stopped = self.unquantized = ""

    def run(self, folder: Path) -> TuneResult:
        """Searches, and says what was found.

        Args:
            folder: for files on the way.

        Raises:
            KeyboardInterrupt: it was ended before anything was found.
        """
        self.folder = folder
        bases: list[tuple[Trial, SearchSpace]] = []
        raw: CostModel | None = None
        try:
            for recipe in self.recipes:
                if bases and not self._time_left():
                    break
                try:
                    base = self.convert(recipe)
                except QtoolError as error:
                    if not bases:
                        raise
                    self.notes.append(f"{recipe.accuracy} left out: {error}")
                    continue
                self.bases[recipe_key(_with_named_steps(recipe))] = base
                space = self._search_space(base)
                bases.append((self._evaluate(space, space.default_config, made=base), space))
            _, space = min(bases, key=lambda b: b[0].score.noise)
            if self._time_left():
                raw = self._measure_model(space)
                self._search(space, raw)
                self._try_float(space)
            known = tuple(self.trials.values())
            self.finalists = time_finalists(self.goals, known, self.archive.store, self._retime)
            self.trials |= {e.key: e for e in self.finalists}
        except KeyboardInterrupt as ended:
            if type(ended) is not KeyboardInterrupt or not bases:
                raise  # another signal means what it says
            self.stopped = "it was interrupted"
        _, space = min(bases, key=lambda b: b[0].score.noise)
        return self._result(space, raw)

    # --- looking ------------------------------------------------------------------------------

    def _search(self, space: SearchSpace, raw: CostModel) -> None:
        while len(self.trials) < self.options.evaluations and self._time_left():
            model = self._fitted(space, raw)
            config = self._next(space, model)
            if config is None:
                return
            (noise,), (spent,), _ = model.predict(np.array([config]))
            try:
                self._evaluate(space, config, float(noise), float(spent))
            except (PlanError, CalibrationError, PassError):  # it cannot be made
                self.refused.add(config)

    def _next(self, space: SearchSpace, model: CostModel) -> Config | None:
        """Where to look: towards the goals, then for less in float, then along the front."""
        known, seen = pareto_front(model, self.goals.smallest), self._observations(space)
        number = next_candidate(known, seen, self.goals, self.refused)
        if number is None and self.requantized < MAX_REQUANTIZED:
            self.requantized += 1
            if (config := quantize_more(model, seen, self.goals, self.refused)) is not None:
                return config
        if number is None and self.options.front:
            return most_promising(model, seen, self.goals, self.refused)
        return None if number is None else known.config(number)

    def _try_float(self, space: SearchSpace) -> None:
        """The last candidate, where losses alone are bounded and nothing keeps them: all that is
        chosen for left in float. It needs no search, and comes on top of the evaluations."""
        goals = self.goals
        bounded = goals.min_speedup is not None or goals.max_size is not None
        kept = any(map(goals.is_met, self.trials.values()))
        if not (bounded or kept) and self._time_left():
            self._evaluate(space, space.config(FLOAT))

    def _time_left(self) -> bool:
        """Whether another evaluation fits into the budget, as long as they took so far."""
        if self.options.budget is None:
            return True
        took = [e.seconds for e in self.trials.values()]
        need = max(took, default=0.0)
        if time.monotonic() - self.started + need <= self.options.budget:
            return True
        self.stopped = "the budget of time is used up"
        return False

    def _observations(self, space: SearchSpace) -> list[Observation]:
        """What was evaluated of a space, in the model's units."""
        return [
            Observation(space.config_of(e.choices), e, self._cost(e))
            for e in self.trials.values()
            if e.accuracy == space.recipe.accuracy
        ]

    def _cost(self, found: Trial) -> float:
        return float(found.size) if self.goals.smallest else self.float_time / found.speedup

    def _fitted(self, space: SearchSpace, raw: CostModel) -> CostModel:
        seen = self._observations(space)
        return fit_scales(
            raw,
            [s.config for s in seen],
            [s.trial.score.noise for s in seen],
            [raw.float_time / s.trial.speedup for s in seen],
        )

    # --- measuring ----------------------------------------------------------------------------

    def _search_space(self, base: Quantized) -> SearchSpace:
        return search_space(
            base.graph,
            base.plan,
            observers_of(base.plan),
            self.options.choices,
            self.options.groups,
        )

    def _evaluate(
        self,
        space: SearchSpace,
        config: Config,
        noise: float = 0.0,
        spent: float = 0.0,
        made: Quantized | None = None,
    ) -> Trial:
        """What is known of a configuration, from the archive or by running it."""
        recipe = space.recipe_of(config)
        key = recipe_key(recipe)
        self.tried_recipes[key], plain = recipe, space.is_float(config)
        self.unquantized = key if plain else self.unquantized
        found = self.archive.trials.get(key)
        if found is None:
            start = time.monotonic()
            quantized = made or (None if plain else self.convert(recipe))
            file = self._write(key, lambda: quantized or self.convert(recipe))
            score = self.judge.score(file)
            (ratio,) = (FLOAT_RATIO,) if plain else self._time([file])
            found = Trial(
                key,
                len(self.trials) + 1,
                recipe.accuracy,
                space.choice_names(config),
                score,
                ratio.median,
                ratio.low,
                ratio.high,
                _bytes(file),
                0.0 if quantized is None else _integer_share(quantized),
                time.monotonic() - start,
                noise,
                spent,
            )
            self.archive.add(found)
            self.new_trials += 1
        self.trials[key] = replace(found, number=len(self.trials) + 1)
        return self.trials[key]

    def _retime(self, found: Sequence[Trial]) -> tuple[Ratio, ...]:
        """Files that were evaluated, beside each other."""
        return self._time(
            [self._write(e.key, partial(self.convert, self.tried_recipes[e.key])) for e in found]
        )

    def _time(self, files: Sequence[Path]) -> tuple[Ratio, ...]:
        """Beside float."""
        return measure_speedups(self.float_file, files, self.inputs, self.options.timing)

    def _write(self, key: str, make: Callable[[], Quantized]) -> Path:
        if key == self.unquantized:
            return self.float_file
        file = self.folder / f"{key}.onnx"
        if not file.exists():
            make().export(file, verify=False)
        return file

    def _measure_model(self, space: SearchSpace) -> CostModel:
        """The model of a space: its measurements are kept in the archive.

        They are made without the steps that write rounded weights into the network: its own float
        values would hold their errors already.
        """
        items = find_items(space)
        plain = replace(space, recipe=_function_preserving(space.recipe))
        bare = replace(plain, recipe=replace(plain.recipe, recover=()))  # to be timed, no more
        recipes = {c: plain.recipe_of(c) for c in uniform_configs(items)}
        models = {c: self.bases.get(recipe_key(r)) or self.convert(r) for c, r in recipes.items()}
        store = self.archive.store(f"{recipe_key(space.recipe)} {items.digest}")
        errors = point_errors(list(models.values()), items.points, self.samples, store)

        def write(config: Config) -> Path:
            known = models.get(config)
            recipe = (bare if known is None else plain).recipe_of(config)
            return self._write(recipe_key(recipe), lambda: known or self.convert(recipe))

        with track_task("times of single nodes"):
            costs = store.load_or_make(
                "costs",
                NodeCosts,
                lambda: measure_costs(
                    items, self.float_file, write, self.inputs, self.options.timing
                ),
            )
        self.float_time = costs.float_time
        whole = {c: _bytes(write(c)) for c in models}
        return CostModel(
            items=items,
            errors=np.array([errors.get(item, 0.0) for item in items.points]),
            times=np.array(costs.times),
            float_time=costs.float_time,
            boundary_us=costs.edge,
            boundary_element_us=costs.element,
            sizes=choice_sizes(space, models, whole, _bytes(self.float_file)),
            float_size=float(_bytes(self.float_file)),
            error_scales=np.ones(len(space.groups)),
        )

    # --- telling ------------------------------------------------------------------------------

    def _result(self, space: SearchSpace, raw: CostModel | None) -> TuneResult:
        evaluated = tuple(self.trials.values())
        best = self.goals.best(self.finalists or evaluated)
        here = best.accuracy == space.recipe.accuracy
        fitted = self._fitted(space, raw) if raw is not None and here else raw
        return TuneResult(
            target=self.target,
            goals=self.goals,
            best=best,
            reached=self.goals.is_met(best),
            missed=tuple(self.goals.describe_misses(best)),
            evaluated=evaluated,
            front=front_keys(evaluated, self.goals.smallest),
            groups=group_choices(space, best, fitted),
            recipes={e.key: self.tried_recipes[e.key] for e in evaluated},
            unquantized=self.unquantized,
            float_size=_bytes(self.float_file),
            float_time=0.0 if raw is None else raw.float_time,
            agreement=self._agreement(space, raw),
            stopped=self.stopped,
            notes=tuple(self.notes),
            fresh=self.new_trials,
            seconds=time.monotonic() - self.started,
        )

    def _agreement(
        self, space: SearchSpace, raw: CostModel | None
    ) -> tuple[float | None, float | None]:
        """Of the model as it was before any evaluation corrected it."""
        seen = (
            [] if raw is None else [s for s in self._observations(space) if s.trial.score.noise > 0]
        )
        if raw is None or not seen:
            return None, None
        noise, spent, _ = raw.predict(np.array([s.config for s in seen]))
        real = np.array([s.trial.score.noise for s in seen])
        speedups = np.array([s.trial.speedup for s in seen])
        return (
            correlation(np.log(np.maximum(noise, NOISE_FLOOR)), np.log(real)),
            correlation(spent, raw.float_time / speedups),
        )


def _with_named_steps(recipe: Recipe) -> Recipe:
    """The same with its steps by name, so that two ways to say them are one."""
    names = tuple(step.name for step in select_steps(recipe) if step is not SOLVE)
    return replace(recipe, accuracy="fast", recover=names)


def _function_preserving(recipe: Recipe) -> Recipe:
    """With the steps alone that change the network without changing what it computes."""
    names = [step.name for step in select_steps(recipe)]
    return replace(recipe, accuracy="fast", recover=tuple(names[: names.index(SOLVE.name)]))


def _integer_share(quantized: Quantized) -> float:
    """Of the MACs, as planned."""
    macs = sum(d.macs for d in quantized.plan.nodes)
    return sum(d.macs for d in quantized.plan.nodes if d.computes_on_codes) / max(1, macs)


def _bytes(file: Path) -> int:
    return sum(f.stat().st_size for f in model_files(file))
