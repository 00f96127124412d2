"""Result of a search: the best file, the goals it meets, and the precision of each layer.

It writes its models and recipes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from qtool.api.quantized_model import QuantizedModel
from qtool.core.argument_names import argument
from qtool.core.atomic import write_atomic
from qtool.core.number_texts import db, percent, quantity, share, size, table, times
from qtool.core.summary import Result, Summary
from qtool.evaluation.latency.interleaved_timing import Timing, speed_rows
from qtool.evaluation.summary_rows import sqnr_row
from qtool.planning.recipe import Recipe
from qtool.plugins.search.goals import TuneGoals
from qtool.plugins.search.judge import Trial


@dataclass(frozen=True)
class LayerChoice:
    """Precision of a layer in the best file.

    Attributes:
        name, op, macs: name, operator and MACs of the layer.
        choice: its precision, a key of `CHOICES`.
        share: error of the tensors around it, as a share of that of all; None if it was not
            measured, since the first file met the goals.
    """

    name: str
    op: str
    macs: int
    choice: str
    share: float | None


@dataclass(frozen=True)
class SearchRun:
    """How a search went.

    Attributes:
        stopped: why it ended early, or "".
        notes: what could not be evaluated, in sentences.
        seconds: its duration.
    """

    stopped: str
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class SearchPlace:
    """Where files of a search were timed.

    Attributes:
        target: target of the files.
        float_size: bytes of the float model.
        runtime: the runtime, with its version; "" for that of the format of the files.
        phase: phase of a decoder whose speed was searched for: "step" or "prompt"; "" for any other
            model.
        timings: the best file in the other phases, after float.
    """

    target: str
    float_size: int
    runtime: str = ""
    phase: str = ""
    timings: tuple[Timing, ...] = ()


@dataclass(frozen=True)
class TunedModel(Result):
    """Result of a search, and its best model.

    Attributes:
        goals: what was looked for.
        best: the delivered file.
        evaluated: all evaluated files, in order.
        recipes: recipe of every file, by key.
        layers: precision of each layer in the best file.
        run: how the search went.
        place: where files were timed.
        convert: makes the quantized model of a recipe.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("reached", "missed")

    goals: TuneGoals
    best: Trial
    evaluated: tuple[Trial, ...]
    recipes: Mapping[str, Recipe]
    layers: tuple[LayerChoice, ...]
    run: SearchRun
    place: SearchPlace
    convert: Callable[[Recipe], QuantizedModel] = field(metadata={"json": False})

    @property
    def reached(self) -> bool:
        """Whether the best file meets every goal."""
        return not self.missed

    @property
    def missed(self) -> tuple[str, ...]:
        """A sentence for each goal that the best file misses."""
        return tuple(self.goals.describe_misses(self.best, self.place.float_size))

    @property
    def recipe(self) -> Recipe:
        """Recipe of the best file, as `quantize` takes it."""
        return self.recipes[self.best.key]

    def quantized(self) -> QuantizedModel:
        """Return the best model."""
        return self.convert(self.recipe)

    def export(self, path: str | Path) -> None:
        """Verify and write the best model.

        Args:
            path: path of the file.

        Raises:
            FileError: the file cannot be written.
            VerificationError: the file does not compute what was planned.
        """
        self.quantized().export(path, timing=0)

    def recipe_text(self, suffix: str = ".toml") -> str:
        """Return the text of a recipe file, which `quantize` reads.

        Args:
            suffix: ".toml" or ".json".
        """
        if suffix == ".json":
            return json.dumps(self.recipe.to_json(), indent=2) + "\n"
        best = self.best
        summary = f"{best.speedup:.2f}x as fast as float, {best.size} bytes, {best.score.text}"
        return f"# Written by qtool tune: {summary}\n{self.recipe.to_toml()}"

    def save(self, path: str | Path, *, recipe: str | Path | None = None) -> None:
        """Write the best model, and optionally its recipe.

        Args:
            path: file for the best model, see `export`.
            recipe: .toml or .json file for the recipe of the best model.

        Raises:
            FileError: a file cannot be written.
            VerificationError: a file does not compute what was planned.
        """
        self.export(path)
        if recipe is not None:
            write_atomic(recipe, self.recipe_text(Path(recipe).suffix).encode())

    def summary(self, title: str = "tuned") -> Summary:
        """Return the best file in a few lines."""
        best = self.best
        interval = f"{best.speed.low:.2f} to {best.speed.high:.2f}"
        place = f", in {self.place.runtime}" if self.place.runtime else ""
        rows = [
            ("size", f"{size(best.size)}, float {size(self.place.float_size)}"),
            (
                self.place.phase or "speed",
                f"{times(best.speedup)} as fast as float (95 % interval {interval}){place}",
            ),
            *((label, f"{text}{place}") for label, text in speed_rows(self.place.timings)),
            sqnr_row(best.score.sqnr_db, best.score.samples),
            ("metric", best.score.text),
            ("integer", f"{share(best.share)} of the MACs"),
            ("search", self._effort()),
            *(("missed", sentence) for sentence in self.missed),
        ]
        head = "all goals met" if self.reached else "goals missed; the best file"
        stopped = (f"stopped: {self.run.stopped}",) if self.run.stopped else ()
        notes = (*self._unset_goal(), *self.run.notes, *stopped)
        return Summary(title, head, tuple(row for row in rows if row[1]), notes)

    def _unset_goal(self) -> tuple[str, ...]:
        """Return what accuracy was asked for where the user did not say it."""
        goals, metric = self.goals, self.best.score.metric
        limit = goals.drop_limit(metric)
        if goals.max_drop is not None or limit is None or metric is None:
            return ()
        options = f"{argument('--max-drop')} or {argument('--min-sqnr')}"
        lost = f"{metric.name} may lose at most {metric.amount(limit)}"
        return (f"no goal for the accuracy was set, so {lost}; set one with {options}",)

    def _effort(self) -> str:
        files = quantity(len(self.evaluated), "file")
        return f"{files} evaluated in {self.run.seconds:.0f} s; layers: {self.best.counts}"

    def details(self) -> str:
        """Return the precision of each layer, and all evaluated files."""
        return f"{self._layers()}\n\n{self._tried()}"

    def _layers(self) -> str:
        rows = [
            (each.name, each.op, each.choice, "" if each.share is None else percent(each.share, 1))
            for each in self.layers
        ]
        head = ("layer", "op", "precision", "share of error")
        return table(head, rows, align="lllr")

    def _tried(self) -> str:
        rows = [
            (
                f"{'*' if e.key == self.best.key else ''}{number}",
                e.accuracy,
                e.counts,
                times(e.speedup),
                size(e.size),
                db(e.score.sqnr_db),
                e.score.text,
            )
            for number, e in enumerate(self.evaluated, 1)
        ]
        head = ("file", "accuracy", "precisions", "speed-up", "size", "SQNR", "metric")
        return table(head, rows, align="lllrrrl")
