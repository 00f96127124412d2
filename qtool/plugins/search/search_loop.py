"""The mixed-precision search: the cost model proposes candidates, evaluations decide.

Accuracy levels come first: each is evaluated as `quantize` writes it, and with the default
precision of every layer where that leaves layers in float; the most accurate one is searched
further. If a goal bounds the loss, the Pareto front is searched for the cheapest file that meets
it, by bisection of the noise between files that met it and files that did not. After each
evaluation the cost model is corrected. The float model is the yardstick and no candidate. At the
end, the files that might be the fastest are timed together. A search can be interrupted at any
time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch
from qtool.core.errors import CalibrationError, ExportError, PassError, PlanError, QtoolError
from qtool.core.search_options import SearchOptions
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.metrics.ranks import correlation
from qtool.planning.recipe import INTEGER_LAYERS, Recipe
from qtool.planning.speed import slow_layers
from qtool.plugins.search.archive import Archive, Trial, recipe_key
from qtool.plugins.search.candidate_files import CandidateFiles, file_bytes, time_finalists
from qtool.plugins.search.choices import Config, SearchSpace, observers_of, search_space
from qtool.plugins.search.cost_model import CostModel, fit_scales
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Judge
from qtool.plugins.search.measured_model import measure_model, named_steps
from qtool.plugins.search.pareto_front import (
    Observation,
    next_candidate,
    pareto_front,
    quantize_more,
)
from qtool.plugins.search.tune_result import TuneResult, front_keys, group_choices

MAX_REQUANTIZED = 2  # evaluations of files with fewer layers in float
NOISE_FLOOR = 1e-30  # so that the logarithm of no noise is a number


class Search:
    """One search; call `run` once."""

    def __init__(
        self,
        files: CandidateFiles,
        target: str,
        recipes: Sequence[Recipe],
        samples: Sequence[Batch],
        judge: Judge,
        goals: TuneGoals,
        options: SearchOptions,
        archive: Archive,
        started: float | None = None,
    ) -> None:
        """
        Args:
            files: converts, writes and times candidates.
            target: name of the target.
            recipes: one per accuracy level, for the layers that are not chosen.
            samples: data for the errors of single tensors.
            judge: scores files on the evaluation data.
            goals, options, archive: see `tune`.
            started: when the budget began, in seconds of `time.monotonic`; by default now.
        """
        self.files, self.target, self.recipes = files, target, recipes
        self.samples, self.judge = samples, judge
        self.goals, self.options, self.archive = goals, options, archive
        self.started = time.monotonic() if started is None else started
        self.trials: dict[str, Trial] = {}
        self.tried_recipes: dict[str, Recipe] = {}
        self.finalists: tuple[Trial, ...] = ()
        self.refused: set[Config] = set()
        self.new_trials = self.requantized = 0
        self.notes: list[str] = []
        self.stopped = ""

    def run(self) -> TuneResult:
        """Search and return the result.

        Raises:
            KeyboardInterrupt: interrupted before the first evaluation.
        """
        bases: list[tuple[Trial, SearchSpace]] = []
        models: dict[str, Quantized] = {}
        raw: CostModel | None = None
        try:
            for recipe in self.recipes:
                if bases and not self._time_left():
                    break
                try:
                    model, whole = self._models(recipe)
                except QtoolError as error:
                    if not bases:
                        raise
                    self.notes.append(f"skipped {recipe.accuracy}: {error}")
                    continue
                space = self._search_space(whole)
                models[recipe_key(named_steps(space.recipe))] = whole
                start = space.config_of_plan(model.plan)
                bases.append((self._evaluate(space, start, model=model, recipe=recipe), space))
                if model is not whole and self._time_left():
                    self._evaluate(space, space.default_config, model=whole)
            _, space = min(bases, key=lambda b: b[0].score.noise)
            if self._time_left():
                raw = measure_model(space, self.files, self.samples, models, self.archive.store)
                self._search(space, raw)
            trials = tuple(self.trials.values())
            self.finalists = time_finalists(self.goals, trials, self.archive.store, self._retime)
            self.trials |= {t.key: t for t in self.finalists}
        except KeyboardInterrupt as interrupt:
            if type(interrupt) is not KeyboardInterrupt or not bases:
                raise  # subclasses are other signals, which end the command
            self.stopped = "interrupted"
        _, space = min(bases, key=lambda b: b[0].score.noise)
        return self._result(space, raw)

    def _models(self, recipe: Recipe) -> tuple[Quantized, Quantized]:
        """Return the model of `quantize`, and that with the default precision of every layer; one
        where nothing stays in float for its time or its error."""
        model = self.files.convert(recipe)
        by_time = any(slow_layers.REASON in d.reason for d in model.plan.nodes)
        if not by_time and model.plan.recipe.rules == recipe.rules:
            return model, model
        return model, self.files.convert(replace(recipe, slow_layers=INTEGER_LAYERS))

    # --- proposing ----------------------------------------------------------------------------

    def _search(self, space: SearchSpace, raw: CostModel) -> None:
        while len(self.trials) < self.options.evaluations and self._time_left():
            observations = self._observations(space, raw)
            model = _fitted(raw, observations)
            config = self._next(model, observations)
            if config is None:
                return
            (noise,), (predicted_time,), _ = model.predict(np.array([config]))
            try:
                self._evaluate(space, config, float(noise), float(predicted_time))
            except (PlanError, CalibrationError, PassError, ExportError):  # it cannot be converted
                self.refused.add(config)

    def _next(self, model: CostModel, observations: Sequence[Observation]) -> Config | None:
        """Return the next configuration: for the goals, or with less in float; None: no more."""
        front = pareto_front(model, self.goals.smallest)
        number = next_candidate(front, observations, self.goals, self.refused)
        if number is not None:
            return front.config(number)
        if self.requantized < MAX_REQUANTIZED:
            self.requantized += 1
            return quantize_more(model, observations, self.goals, self.refused)
        return None

    def _time_left(self) -> bool:
        """Return True if the budget allows another evaluation of the longest duration so far."""
        if self.options.budget is None:
            return True
        need = max((t.seconds for t in self.trials.values()), default=0.0)
        if time.monotonic() - self.started + need <= self.options.budget:
            return True
        self.stopped = "the time budget is used up"
        return False

    def _observations(self, space: SearchSpace, raw: CostModel) -> list[Observation]:
        """Return the trials of a space, with their costs in the unit of the model."""

        def cost(trial: Trial) -> float:
            return float(trial.size) if self.goals.smallest else raw.float_time / trial.speedup

        return [
            Observation(space.config_of(t.choices), t, cost(t))
            for t in self.trials.values()
            if t.accuracy == space.recipe.accuracy
        ]

    # --- evaluating ---------------------------------------------------------------------------

    def _search_space(self, model: Quantized) -> SearchSpace:
        return search_space(
            model.graph,
            model.plan,
            observers_of(model.plan),
            self.options.choices,
            self.options.groups,
        )

    def _evaluate(
        self,
        space: SearchSpace,
        config: Config,
        noise: float = 0.0,
        predicted_time: float = 0.0,
        model: Quantized | None = None,
        recipe: Recipe | None = None,
    ) -> Trial:
        """Return the trial of a configuration, from the archive or by running its file.

        Args:
            noise: predicted noise-to-signal ratio.
            predicted_time: microseconds.
            model: the quantized model, if it is known already.
            recipe: its recipe; by default that of the configuration.
        """
        recipe = recipe or space.recipe_of(config)
        key = recipe_key(recipe)
        self.tried_recipes[key] = recipe
        trial = self.archive.trials.get(key)
        if trial is None:
            start = time.monotonic()
            model = model or self.files.convert(recipe)
            file, share = self.files.write(recipe, model), _integer_share(model)
            score = self.judge.score(file)
            (ratio,) = self.files.speedups([file])
            trial = Trial(
                key,
                len(self.trials) + 1,
                recipe.accuracy,
                space.choice_names(config),
                score,
                ratio.median,
                ratio.low,
                ratio.high,
                file_bytes(file),
                share,
                time.monotonic() - start,
                noise,
                predicted_time,
            )
            self.archive.add(trial)
            self.new_trials += 1
        self.trials[key] = replace(trial, number=len(self.trials) + 1)
        return self.trials[key]

    def _retime(self, trials: Sequence[Trial]) -> tuple[Ratio, ...]:
        """Time evaluated files together."""
        return self.files.speedups([self.files.write(self.tried_recipes[t.key]) for t in trials])

    # --- result -------------------------------------------------------------------------------

    def _result(self, space: SearchSpace, raw: CostModel | None) -> TuneResult:
        trials, float_size = tuple(self.trials.values()), file_bytes(self.files.float_file)
        best = self.goals.best(self.finalists or trials, float_size)
        observations = [] if raw is None else self._observations(space, raw)
        model = raw
        if raw is not None and best.accuracy == space.recipe.accuracy:
            model = _fitted(raw, observations)
        return TuneResult(
            target=self.target,
            goals=self.goals,
            best=best,
            reached=self.goals.is_met(best) and self.goals.gains(best, float_size),
            missed=tuple(self.goals.describe_misses(best, float_size)),
            evaluated=trials,
            front=front_keys(trials, self.goals.smallest),
            groups=group_choices(space, best, model),
            recipes={t.key: self.tried_recipes[t.key] for t in trials},
            float_size=float_size,
            float_time=0.0 if raw is None else raw.float_time,
            agreement=(None, None) if raw is None else _fit_of_model(raw, observations),
            stopped=self.stopped,
            notes=tuple(self.notes),
            fresh=self.new_trials,
            seconds=time.monotonic() - self.started,
        )


def _fitted(raw: CostModel, observations: Sequence[Observation]) -> CostModel:
    return fit_scales(
        raw,
        [o.config for o in observations],
        [o.trial.score.noise for o in observations],
        [raw.float_time / o.trial.speedup for o in observations],
    )


def _fit_of_model(
    raw: CostModel, observations: Sequence[Observation]
) -> tuple[float | None, float | None]:
    """Return the correlations of the uncorrected model with measurements: dB of error, time."""
    noisy = [o for o in observations if o.trial.score.noise > 0]
    if not noisy:
        return None, None
    noise, predicted_times, _ = raw.predict(np.array([o.config for o in noisy]))
    measured = np.array([o.trial.score.noise for o in noisy])
    speedups = np.array([o.trial.speedup for o in noisy])
    return (
        correlation(np.log(np.maximum(noise, NOISE_FLOOR)), np.log(measured)),
        correlation(predicted_times, raw.float_time / speedups),
    )


def _integer_share(model: Quantized) -> float:
    """Return the planned share of MACs in integer kernels."""
    macs = sum(d.macs for d in model.plan.nodes)
    return sum(d.macs for d in model.plan.nodes if d.computes_on_codes) / max(1, macs)
