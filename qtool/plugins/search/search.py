"""The search: a greedy choice of the layers that give up their codes, judged by whole files.

1. Each level of recovery is evaluated as `quantize` writes it, and with all layers in integers
   where the table of costs left some in float. The most accurate level goes on.
2. A ladder has the precisions of layers, from the cheapest to float. Where the level meets the
   goal of accuracy, cheaper ones are tried for all layers, down to the first that misses it.
3. Where a precision misses the goal, layers are ranked by the error that the tensors around them
   make alone, for their cost (`ranking`). Bisection answers how many of the first ones need the
   next precision of the ladder. The next number is that where the error is predicted to be as
   large as the goal allows, or half of the way in dB. Where the next precision does not do what is
   predicted, since weights are the cause, the one after it is tried, float at last.
4. Files that might be the fastest are timed in the same sessions.

Float is the last precision of the ladder, and no candidate. Ctrl-C, the number of evaluations and
the time budget end the search with the best file so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from qtool.algorithms.pipeline import SOLVE
from qtool.algorithms.registry import SENSITIVE_LAYERS, select_steps
from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch
from qtool.core.errors import CalibrationError, ExportError, PassError, PlanError, QtoolError
from qtool.core.search_options import SearchOptions
from qtool.core.types import Array
from qtool.planning.plan import Decision, QuantPlan
from qtool.planning.recipe import INTEGER_LAYERS, MODES, Recipe
from qtool.planning.speed import slow_layers
from qtool.plugins.search.candidate_files import CandidateFiles, file_bytes, time_finalists
from qtool.plugins.search.choices import CHOICES, FLOAT, choices_of
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Judge, Trial, recipe_key
from qtool.plugins.search.ranking import Ranking, candidates_of, predicted_cost, ranked
from qtool.plugins.search.tuned_model import LayerChoice, SearchPlace, SearchRun, TunedModel

_REFUSED = (PlanError, CalibrationError, PassError, ExportError)  # a recipe that gives no file
_MUCH = 0.1  # of the error, that a goal of no known error may leave at first
_OFF = 2  # times the predicted error, from which a precision is given up
_LEAST = 1e-30  # error


@dataclass(frozen=True, eq=False)
class Subject:
    """What a search chooses from.

    Attributes:
        recipes: a recipe for each level of recovery, the lowest first.
        layers: the layers whose precision is shown.
        plan: recipe -> its plan.
        samples: batches for the errors of single tensors.
    """

    recipes: Sequence[Recipe]
    layers: Sequence[Decision]
    plan: Callable[[Recipe], QuantPlan]
    samples: Sequence[Batch]


@dataclass(eq=False)
class Search:
    """One search; call `run` once.

    Attributes:
        files: converts, writes and times candidates.
        judge: scores files on the evaluation data.
        goals, options: see `tune`.
        subject: the network, and what is chosen.
        trials: evaluated files by key, in order.
        tried: their recipes.
    """

    files: CandidateFiles
    judge: Judge
    goals: TuneGoals
    options: SearchOptions
    subject: Subject
    trials: dict[str, Trial] = field(default_factory=dict)
    tried: dict[str, Recipe] = field(default_factory=dict)

    def run(self, started: float, place: SearchPlace) -> TunedModel:
        """Search and return the result.

        Args:
            started: when the budget began, in seconds of `time.monotonic`.
            place: where files are timed.

        Raises:
            KeyboardInterrupt: interrupted before the first evaluation.
        """
        self.started, self.stopped = started, ""
        self.notes: list[str] = []
        self.ranking: Ranking | None = None
        finalists: tuple[Trial, ...] = ()
        try:
            base, model = self._levels()
            self._climb(base, model)
            finalists = time_finalists(self.goals, [*self.trials.values()], self._retime)
            self.trials |= {t.key: t for t in finalists}
        except KeyboardInterrupt as interrupt:
            if type(interrupt) is not KeyboardInterrupt or not self.trials:
                raise  # subclasses are other signals, which end the command
            self.stopped = "interrupted"
        run = SearchRun(self.stopped, tuple(self.notes), time.monotonic() - started)
        trials = tuple(self.trials.values())
        best = self.goals.best(finalists or trials, place.float_size)
        recipes = {t.key: self.tried[t.key] for t in trials}
        layers, convert = tuple(self._layers(best)), self.files.convert
        return TunedModel(self.goals, best, trials, recipes, layers, run, place, convert)

    def _levels(self) -> tuple[Trial, Quantized]:
        """Evaluate the levels of recovery; return the most accurate one with its model."""
        levels: list[tuple[Trial, Quantized]] = []
        for recipe in self.subject.recipes:
            if levels and not self._goes_on():
                break
            try:
                model = self.files.convert(recipe)
            except QtoolError as error:
                if not levels:
                    raise
                self.notes.append(f"skipped {recipe.accuracy}: {error}")
                continue
            levels.append((self._evaluate(recipe, model), model))
            by_time = any(slow_layers.REASON in d.reason for d in model.plan.nodes)
            if by_time and self._goes_on():
                self._try(replace(recipe, slow_layers=INTEGER_LAYERS))
        return min(levels, key=lambda level: level[0].score.noise)

    # --- the ladder ---------------------------------------------------------------------------

    def _climb(self, base: Trial, model: Quantized) -> None:
        """Search between the precision of a level and a neighbour on the ladder."""
        recipe, own = _without_search(model.plan.recipe), MODES[model.plan.recipe.mode]
        ranking = candidates_of(model, recipe, self.options.groups, self._by_size)
        self.ranking, count = ranking, len(ranking.sources)
        ladder = self._ladder(ranking, model, own)
        start = ladder.index(own)
        if not self.goals.meets_accuracy(base):
            for choice in ladder[start + 1 :]:
                if self._bisect(ranking, model, choice, (base, None)):
                    return
            return
        best, high = base, own
        for choice in reversed(ladder[:start]):
            trial = self._try(ranking.recipe_at(count, choice))
            if trial is None:
                return
            if not self.goals.meets_accuracy(trial):
                lower = replace(ranking, low=choice)
                coarse = self.files.convert(lower.recipe_at(0, high))
                self._bisect(lower, coarse, high, (trial, best))
                return
            best, high = trial, choice

    @property
    def _by_size(self) -> bool:
        return self.goals.smallest or self.goals.max_size is not None

    def _ladder(self, ranking: Ranking, model: Quantized, own: str) -> list[str]:
        """Return the precisions that all layers can have, the cheapest first and float last."""
        costs: dict[str, tuple[float, float]] = {}
        known: set[tuple[str, ...]] = set()
        for choice in (own, *(c for c in CHOICES if c in self.options.choices)):
            recipe = ranking.recipe_at(len(ranking.sources), choice)
            plan = model.plan if choice == own else self._plan(recipe)
            if plan is None:
                continue
            layers = choices_of(plan, self.subject.layers)
            if layers not in known and set(layers) != {FLOAT}:
                known.add(layers)
                costs[choice] = predicted_cost(model, plan, self._by_size)
        return [*sorted(costs, key=lambda choice: costs[choice]), FLOAT]

    def _plan(self, recipe: Recipe) -> QuantPlan | None:
        try:
            return self.subject.plan(recipe)
        except QtoolError:
            return None

    def _bisect(
        self, ranking: Ranking, model: Quantized, high: str, ends: tuple[Trial, Trial | None]
    ) -> bool:
        """Look for the fewest layers that need a better precision; return whether one is enough.

        A precision that leaves far more error than was predicted is given up, unless it is float.

        Args:
            ranking: the layers, and their precision in the model.
            model: misses the goal.
            high: the better precision.
            ends: the files with none and with all of the layers in it; None: not evaluated.
        """
        if not self._goes_on():
            return False
        if self.ranking is ranking or self.ranking is None or self.ranking.low != ranking.low:
            self.ranking = ranked(ranking, model, self.subject.samples)
        ranking = self.ranking
        low, top = 0, len(ranking.sources)
        noise = [ends[0].score.noise, 0.0 if ends[1] is None else ends[1].score.noise]
        is_met = ends[1] is not None
        while not ranking.is_close(low, top) and self._goes_on():
            count, predicted = self._next_count(ranking.left, (low, top), noise)
            trial = self._try(ranking.recipe_at(count, high))
            if trial is not None and self.goals.meets_accuracy(trial):
                top, noise[1], is_met = count, trial.score.noise, True
                continue
            if trial is None:  # at the end since no layer is left in codes, else a range is missing
                low, top = (low, count) if count == top - 1 else (count, top)
                continue
            low, noise[0] = count, trial.score.noise
            if not is_met and high != FLOAT and noise[0] > _OFF * predicted:
                break
        return is_met

    def _next_count(
        self, left: Array, ends: tuple[int, int], noise: Sequence[float]
    ) -> tuple[int, float]:
        """Return the number of layers to try between two ends, and the predicted error.

        Args:
            left: share of the error that remains with so many of them in the better precision.
            ends: a number that misses the goal, and one that meets it.
            noise: the measured errors of both.
        """
        low, top = ends
        most = max(noise[0], _LEAST)
        allowed = self.goals.max_noise
        if allowed is None or self.goals.max_drop is not None:
            half = float(np.sqrt(most * max(noise[1], _MUCH * _MUCH * most)))
            allowed = half if allowed is None else min(half, allowed)
        between = (left[low + 1 : top] - left[top]) / max(left[low] - left[top], _LEAST)
        predicted = noise[1] + (most - noise[1]) * between
        enough = np.flatnonzero(predicted <= allowed)
        at = int(enough[0]) if len(enough) else len(between) - 1
        return low + 1 + at, float(predicted[at])

    # --- evaluating ---------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        """Return True if the limits allow another evaluation, of the longest duration so far."""
        if len(self.trials) >= self.options.evaluations:
            return False
        need = max((t.seconds for t in self.trials.values()), default=0.0)
        budget = self.options.budget
        if budget is None or time.monotonic() - self.started + need <= budget:
            return True
        self.stopped = "the time budget is used up"
        return False

    def _try(self, recipe: Recipe) -> Trial | None:
        """Return the trial of a recipe; None where it gives no file, or the limits allow none."""
        if not self._goes_on():
            return None
        try:
            return self._evaluate(recipe)
        except _REFUSED:
            return None

    def _evaluate(self, recipe: Recipe, model: Quantized | None = None) -> Trial:
        """Return the trial of a recipe, which is run if it was not before. model: that of the
        recipe, if it is known already."""
        key = recipe_key(recipe)
        trial = self.trials.get(key)
        if trial is None:
            start = time.monotonic()
            model = model or self.files.convert(recipe)
            file = self.files.write(recipe, model)
            score = self.judge.score(file)
            trial = Trial(
                key,
                recipe.accuracy,
                choices_of(model.plan, self.subject.layers),
                score,
                self.files.speedups([file])[0],
                file_bytes(file),
                _integer_share(model.plan),
                time.monotonic() - start,
            )
            self.trials[key] = trial
        self.tried[key] = recipe
        return trial

    def _retime(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """Return evaluated files with speed-ups from the same sessions."""
        speeds = self.files.speedups([self.files.write(self.tried[t.key]) for t in trials])
        return tuple(replace(t, speed=s) for t, s in zip(trials, speeds, strict=True))

    def _layers(self, best: Trial) -> Iterator[LayerChoice]:
        for layer, choice in zip(self.subject.layers, best.choices, strict=True):
            share = None if self.ranking is None else self.ranking.share_of(layer.node)
            yield LayerChoice(layer.node, layer.op, layer.macs, choice, share)


def _without_search(recipe: Recipe) -> Recipe:
    """Return the recipe without the step that looks for layers to leave in float."""
    steps = (step for step in select_steps(recipe) if step not in (SOLVE, SENSITIVE_LAYERS))
    return replace(recipe, recover=tuple(step.name for step in steps))


def _integer_share(plan: QuantPlan) -> float:
    """Return the planned share of MACs in integer kernels."""
    macs = sum(d.macs for d in plan.nodes)
    return sum(d.macs for d in plan.nodes if d.computes_on_codes) / max(1, macs)
