"""The result of `tune`, which writes its models and recipes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from qtool.api.quantized_model import QuantizedModel
from qtool.core.atomic import write_atomic
from qtool.planning.recipe import Recipe
from qtool.plugins.search.tune_result import TuneResult


class TunedModel(TuneResult):
    """The result of a search, and its best model.

    Attributes:
        convert: makes the quantized model of a recipe.
    """

    convert: Callable[[Recipe], QuantizedModel]

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


def tuned_model(result: TuneResult, convert: Callable[[Recipe], QuantizedModel]) -> TunedModel:
    """Return the result of a search, with the function that makes its models."""
    tuned = TunedModel(**vars(result))
    object.__setattr__(tuned, "convert", convert)  # of a frozen class: no field of the result
    return tuned
