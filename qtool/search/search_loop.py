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
from qtool.backends.onnx.storage import files_of
from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch
from qtool.core.errors import CalibrationError, PassError, PlanError, QtoolError
from qtool.core.limits import Range, check_fields
from qtool.core.progress import during
from qtool.core.types import Array
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.planning.recipe import Recipe
from qtool.search.archive import Archive, Evaluated, key_of
from qtool.search.choices import FLOAT, Config, Space, observers_of, space_of
from qtool.search.cost_model import Additive, items_of
from qtool.search.expected_improvement import most_promising
from qtool.search.file_sizes import sizes_of
from qtool.search.finalists import compared
from qtool.search.goals import TuneGoals
from qtool.search.judge import Judge
from qtool.search.layer_costs import NodeCosts, measured_costs, probes
from qtool.search.measured_speedups import speeds
from qtool.search.model_correction import agreement, corrected
from qtool.search.next_candidate import Seen, leaner, next_of
from qtool.search.pareto_front import front
from qtool.search.tensor_errors import point_errors
from qtool.search.tune_result import Tuned, chosen_of, front_of

TIMING = 0.5
LEAN = 2  # evaluations for files that leave less in float
LEAST = 1e-30  # of noise, so that its logarithm is a number
ITSELF = Ratio(1.0, 1.0, 1.0, 1.0, 1.0)
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
        self.found: dict[str, Evaluated] = {}
        self.made: dict[str, Recipe] = {}
        self.finals: tuple[Evaluated, ...] = ()
        self.bases: dict[str, Quantized] = {}
        self.refused: set[Config] = set()
        self.fresh = self.lean = 0
        self.notes: list[str] = []
        self.stopped = self.unquantized = ""

    def run(self, folder: Path) -> Tuned:
        """Searches, and says what was found.

        Args:
            folder: for files on the way.

        Raises:
            KeyboardInterrupt: it was ended before anything was found.
        """
        self.folder = folder
        bases: list[tuple[Evaluated, Space]] = []
        raw: Additive | None = None
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
                self.bases[key_of(_by_steps(recipe))] = base
                space = self._space(base)
                bases.append((self._evaluated(space, space.usual, made=base), space))
            _, space = min(bases, key=lambda b: b[0].score.noise)
            if self._time_left():
                raw = self._additive(space)
                self._search(space, raw)
                self._in_float(space)
            known = tuple(self.found.values())
            self.finals = compared(self.goals, known, self.archive.store, self._anew)
            self.found |= {e.key: e for e in self.finals}
        except KeyboardInterrupt as ended:
            if type(ended) is not KeyboardInterrupt or not bases:
                raise  # another signal means what it says
            self.stopped = "it was interrupted"
        _, space = min(bases, key=lambda b: b[0].score.noise)
        return self._result(space, raw)

    # --- looking ------------------------------------------------------------------------------

    def _search(self, space: Space, raw: Additive) -> None:
        while len(self.found) < self.options.evaluations and self._time_left():
            model = self._corrected(space, raw)
            config = self._next(space, model)
            if config is None:
                return
            (noise,), (spent,), _ = model.predict(np.array([config]))
            try:
                self._evaluated(space, config, float(noise), float(spent))
            except (PlanError, CalibrationError, PassError):  # it cannot be made
                self.refused.add(config)

    def _next(self, space: Space, model: Additive) -> Config | None:
        """Where to look: towards the goals, then for less in float, then along the front."""
        known, seen = front(model, self.goals.smallest), self._seen(space)
        number = next_of(known, seen, self.goals, self.refused)
        if number is None and self.lean < LEAN:
            self.lean += 1
            if (config := leaner(model, seen, self.goals, self.refused)) is not None:
                return config
        if number is None and self.options.front:
            return most_promising(model, seen, self.goals, self.refused)
        return None if number is None else known.config(number)

    def _in_float(self, space: Space) -> None:
        """The last candidate, where losses alone are bounded and nothing keeps them: all that is
        chosen for left in float. It needs no search, and comes on top of the evaluations."""
        goals = self.goals
        bounded = goals.min_speedup is not None or goals.max_size is not None
        kept = any(map(goals.kept, self.found.values()))
        if not (bounded or kept) and self._time_left():
            self._evaluated(space, space.config(FLOAT))

    def _time_left(self) -> bool:
        """Whether another evaluation fits into the budget, as long as they took so far."""
        if self.options.budget is None:
            return True
        took = [e.seconds for e in self.found.values()]
        need = max(took, default=0.0)
        if time.monotonic() - self.started + need <= self.options.budget:
            return True
        self.stopped = "the budget of time is used up"
        return False

    def _seen(self, space: Space) -> list[Seen]:
        """What was evaluated of a space, in the model's units."""
        return [
            Seen(space.numbered(e.choices), e, self._cost(e))
            for e in self.found.values()
            if e.accuracy == space.recipe.accuracy
        ]

    def _cost(self, found: Evaluated) -> float:
        return float(found.size) if self.goals.smallest else self.float_time / found.speedup

    def _corrected(self, space: Space, raw: Additive) -> Additive:
        seen = self._seen(space)
        return corrected(
            raw,
            [s.config for s in seen],
            [s.found.score.noise for s in seen],
            [raw.float_time / s.found.speedup for s in seen],
        )

    # --- measuring ----------------------------------------------------------------------------

    def _space(self, base: Quantized) -> Space:
        return space_of(
            base.graph,
            base.plan,
            observers_of(base.plan),
            self.options.choices,
            self.options.groups,
        )

    def _evaluated(
        self,
        space: Space,
        config: Config,
        noise: float = 0.0,
        spent: float = 0.0,
        made: Quantized | None = None,
    ) -> Evaluated:
        """What is known of a configuration, from the archive or by running it."""
        recipe = space.recipe_of(config)
        key = key_of(recipe)
        self.made[key], plain = recipe, space.is_float(config)
        self.unquantized = key if plain else self.unquantized
        found = self.archive.found.get(key)
        if found is None:
            start = time.monotonic()
            quantized = made or (None if plain else self.convert(recipe))
            file = self._written(key, lambda: quantized or self.convert(recipe))
            score = self.judge.score(file)
            (ratio,) = (ITSELF,) if plain else self._timed([file])
            found = Evaluated(
                key,
                len(self.found) + 1,
                recipe.accuracy,
                space.named(config),
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
            self.archive.put(found)
            self.fresh += 1
        self.found[key] = replace(found, number=len(self.found) + 1)
        return self.found[key]

    def _anew(self, found: Sequence[Evaluated]) -> tuple[Ratio, ...]:
        """Files that were evaluated, beside each other."""
        return self._timed(
            [self._written(e.key, partial(self.convert, self.made[e.key])) for e in found]
        )

    def _timed(self, files: Sequence[Path]) -> tuple[Ratio, ...]:
        """Beside float."""
        return speeds(self.float_file, files, self.inputs, self.options.timing)

    def _written(self, key: str, make: Callable[[], Quantized]) -> Path:
        if key == self.unquantized:
            return self.float_file
        file = self.folder / f"{key}.onnx"
        if not file.exists():
            make().export(file, verify=False)
        return file

    def _additive(self, space: Space) -> Additive:
        """The model of a space: its measurements are kept in the archive.

        They are made without the steps that write rounded weights into the network: its own float
        values would hold their errors already.
        """
        items = items_of(space)
        plain = replace(space, recipe=_keeping_function(space.recipe))
        bare = replace(plain, recipe=replace(plain.recipe, recover=()))  # to be timed, no more
        recipes = {c: plain.recipe_of(c) for c in probes(items)}
        models = {c: self.bases.get(key_of(r)) or self.convert(r) for c, r in recipes.items()}
        store = self.archive.store(f"{key_of(space.recipe)} {items.digest}")
        errors = point_errors(list(models.values()), items.points, self.samples, store)

        def write(config: Config) -> Path:
            known = models.get(config)
            recipe = (bare if known is None else plain).recipe_of(config)
            return self._written(key_of(recipe), lambda: known or self.convert(recipe))

        with during("times of single nodes"):
            costs = store.once(
                "costs",
                NodeCosts,
                lambda: measured_costs(
                    items, self.float_file, write, self.inputs, self.options.timing
                ),
            )
        self.float_time = costs.float_time
        whole = {c: _bytes(write(c)) for c in models}
        return Additive(
            items=items,
            errors=np.array([errors.get(item, 0.0) for item in items.points]),
            times=np.array(costs.times),
            float_time=costs.float_time,
            edge=costs.edge,
            element=costs.element,
            sizes=sizes_of(space, models, whole, _bytes(self.float_file)),
            float_size=float(_bytes(self.float_file)),
            trust=np.ones(len(space.groups)),
        )

    # --- telling ------------------------------------------------------------------------------

    def _result(self, space: Space, raw: Additive | None) -> Tuned:
        evaluated = tuple(self.found.values())
        best = self.goals.best(self.finals or evaluated)
        here = best.accuracy == space.recipe.accuracy
        fitted = self._corrected(space, raw) if raw is not None and here else raw
        return Tuned(
            target=self.target,
            goals=self.goals,
            best=best,
            reached=self.goals.kept(best),
            missed=tuple(self.goals.told(best)),
            evaluated=evaluated,
            front=front_of(evaluated, self.goals.smallest),
            groups=chosen_of(space, best, fitted),
            recipes={e.key: self.made[e.key] for e in evaluated},
            unquantized=self.unquantized,
            float_size=_bytes(self.float_file),
            float_time=0.0 if raw is None else raw.float_time,
            agreement=self._agreement(space, raw),
            stopped=self.stopped,
            notes=tuple(self.notes),
            fresh=self.fresh,
            seconds=time.monotonic() - self.started,
        )

    def _agreement(self, space: Space, raw: Additive | None) -> tuple[float | None, float | None]:
        """Of the model as it was before any evaluation corrected it."""
        seen = [] if raw is None else [s for s in self._seen(space) if s.found.score.noise > 0]
        if raw is None or not seen:
            return None, None
        noise, spent, _ = raw.predict(np.array([s.config for s in seen]))
        real = np.array([s.found.score.noise for s in seen])
        speedups = np.array([s.found.speedup for s in seen])
        return (
            agreement(np.log(np.maximum(noise, LEAST)), np.log(real)),
            agreement(spent, raw.float_time / speedups),
        )


def _by_steps(recipe: Recipe) -> Recipe:
    """The same with its steps by name, so that two ways to say them are one."""
    names = tuple(step.name for step in select_steps(recipe) if step is not SOLVE)
    return replace(recipe, accuracy="fast", recover=names)


def _keeping_function(recipe: Recipe) -> Recipe:
    """With the steps alone that change the network without changing what it computes."""
    names = [step.name for step in select_steps(recipe)]
    return replace(recipe, accuracy="fast", recover=tuple(names[: names.index(SOLVE.name)]))


def _integer_share(quantized: Quantized) -> float:
    """Of the MACs, as planned."""
    macs = sum(d.macs for d in quantized.plan.nodes)
    return sum(d.macs for d in quantized.plan.nodes if d.computes_on_codes) / max(1, macs)


def _bytes(file: Path) -> int:
    return sum(f.stat().st_size for f in files_of(file))
