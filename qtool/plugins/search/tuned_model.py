"""The result of `tune`, which writes its models and recipes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from qtool.api.quantized_model import QuantizedModel
from qtool.core.atomic import write_atomic
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.planning.recipe import Recipe
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
