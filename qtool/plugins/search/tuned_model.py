"""The result of `tune`, which writes its models, recipes and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from qtool.api.quantized_model import QuantizedModel
from qtool.core.atomic import write_atomic
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.core.path_arguments import accepts_paths
from qtool.evaluation.report.page.figures import INK, SERIES, Drawing, draw_svg, escape_math
from qtool.evaluation.report.page.render import environment
from qtool.planning.recipe import Recipe
from qtool.plugins.search.judge import Score
from qtool.plugins.search.tune_result import TuneResult


class TunedModel(TuneResult):
    """The result of a search, and its models.

    Attributes:
        convert: makes the quantized model of a recipe.
        suffix: end of the names of the files of the search.
    """

    convert: Callable[[Recipe], QuantizedModel]
    suffix: str

    def quantized(self, key: str | None = None) -> QuantizedModel:
        """Return the best model, or the model of an evaluation.

        Args:
            key: key of the evaluation; None: the best one.
        """
        return self.convert(self.recipes[key or self.best.key])

    def export(self, path: str | Path, key: str | None = None) -> None:
        """Verify and write the best model, or the model of an evaluation.

        Args:
            path: path of the file.
            key: key of the evaluation; None: the best one.

        Raises:
            FileError: the file cannot be written.
            VerificationError: the file does not compute what was planned.
        """
        self.quantized(key).export(path, timing=0)

    def recipe_text(self, suffix: str = ".toml", key: str | None = None) -> str:
        """Return the text of a recipe file, which `quantize` reads.

        Args:
            suffix: ".toml" or ".json".
            key: key of the evaluation; None: the best one.
        """
        recipe = self.recipes[key or self.best.key]
        if suffix == ".json":
            return json.dumps(recipe.to_json(), indent=2) + "\n"
        trial = next(e for e in self.evaluated if e.key == (key or self.best.key))
        summary = f"{trial.speedup:.2f}x as fast as float, {trial.size} bytes, {trial.score.text}"
        return f"# Written by qtool tune: {summary}\n{recipe.to_toml()}"

    @accepts_paths("path", "page", "recipe")
    def save(
        self,
        path: str | Path,
        *,
        page: str | Path | None = None,
        recipe: str | Path | None = None,
    ) -> None:
        """Write the best model, and optionally a page and the recipe.

        Args:
            path: file for the best model, see `export`.
            page: .html file with the front, the choice for each layer and all evaluations.
            recipe: .toml or .json file for the recipe of the best model.

        Raises:
            FileError: a file cannot be written.
            VerificationError: a file does not compute what was planned.
        """
        self.export(path)
        if page is not None:
            from qtool.plugins.search.tuned_model import tune_page  # loads matplotlib

            write_atomic(page, tune_page(self, Path(path).stem))
        if recipe is not None:
            write_atomic(recipe, self.recipe_text(Path(recipe).suffix).encode())


def tuned_model(
    result: TuneResult,
    convert: Callable[[Recipe], QuantizedModel],
    suffix: str = MODEL_SUFFIXES[0],
) -> TunedModel:
    """Return the result of a search, with the function that makes its models."""
    tuned = TunedModel(**vars(result))
    object.__setattr__(tuned, "convert", convert)  # of a frozen class: no fields of the result
    object.__setattr__(tuned, "suffix", suffix)
    return tuned


def tune_page(result: TuneResult, title: str) -> bytes:
    """Return the page as self-contained HTML."""
    front = _front_figure(result)
    template = environment().get_template("tune.html")
    metric = _metric(result.best.score)
    return template.render(result=result, title=title, front=front, metric=metric).encode()


def _metric(score: Score) -> dict[str, str]:
    """Return the metric of the best file, and that of the float model with the interval."""
    if score.value is None or score.reference is None:
        return {}
    unit, mark = (100.0, " %") if score.percent else (1.0, "")
    comparison = f"float {unit * score.reference:.4g}{mark}"
    if score.low is not None and score.high is not None:
        ends = (f"{0.0 - unit * end:+.3g}" for end in (score.high, score.low))
        comparison += f", {' to '.join(ends)}{' points' if score.percent else ''}"
    return {"value": f"{unit * score.value:.4g}{mark}", "comparison": comparison}


LEAST = 3  # files of a plot


def _front_figure(result: TuneResult) -> Drawing | None:
    """Plot all evaluated files, SQNR over cost, with the Pareto front as a line; None of few."""
    smallest = result.goals.smallest
    files = [e for e in result.evaluated if e.score.sqnr_db is not None]
    if len(files) < LEAST:
        return None
    cost = {e.key: e.size / 1024 if smallest else e.speedup for e in files}
    front = [e for key in result.front for e in files if e.key == key]

    def draw(axes: Axes) -> None:
        axes.plot(
            [cost[e.key] for e in front],
            [e.score.sqnr_db or 0.0 for e in front],
            color=SERIES[1],
            linewidth=1.4,
        )
        for e in files:
            best = e.key == result.best.key
            color = SERIES[3] if result.goals.is_met(e) else SERIES[0]
            axes.plot([cost[e.key]], [e.score.sqnr_db or 0.0], "o", color=color, markersize=6)
            axes.annotate(
                escape_math(f"{e.number} (best)" if best else str(e.number)),
                (cost[e.key], e.score.sqnr_db or 0.0),
                xytext=(6, 5),
                textcoords="offset points",
                color=INK,
                fontsize=8,
                fontweight="bold" if best else "normal",
            )
        if result.goals.min_sqnr is not None:
            axes.axhline(result.goals.min_sqnr, color=SERIES[2], linewidth=1, linestyle="--")
        axes.margins(0.12)
        axes.set_xlabel("size in KiB" if smallest else "speed-up over the float model")
        axes.set_ylabel("output SQNR in dB")

    low, high = (f(e.score.sqnr_db or 0.0 for e in files) for f in (min, max))
    return draw_svg("Evaluated files", 3.4 if np.ptp([low, high]) else 2.6, draw)
