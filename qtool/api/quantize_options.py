"""How a model is quantized, as one value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qtool.core.atomic import check_writable
from qtool.core.errors import FileError
from qtool.core.option_names import RECIPE_SUFFIXES, Accuracy, Mode
from qtool.core.remedies import OtherFile
from qtool.frontends.captured_model import DEFAULT_OBSERVER, DynamicSizes
from qtool.planning.recipe import Recipe
from qtool.planning.targets import target_for


@dataclass(frozen=True)
class QuantizeOptions:
    """How a model is quantized: the arguments of `qtool.quantize` of these names.

    Without a target it is that of the file: "tflite" for .tflite, "tflite-micro" for C source.

    Attributes:
        measure: file for the recipe of `qtool.fastest_recipe`, which the model is quantized with;
            None measures nothing. Of a model of two parts each gets a file, with its name.
    """

    target: str | None = None
    observer: str = DEFAULT_OBSERVER
    recipe: Any = None
    mode: Mode | None = None
    accuracy: Accuracy | None = None
    recover: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    dynamic: DynamicSizes | None = None
    measure: str | Path | None = None

    def __post_init__(self) -> None:
        self.check_measure()

    def check_measure(self, *inputs: str | Path | None) -> None:
        """Check that the recipe can be written. inputs: paths of inputs, which are not overwritten.

        Raises:
            FileError: it cannot.
        """
        if self.measure is not None:
            own = self.recipe if isinstance(self.recipe, str | Path) else None
            if Path(self.measure).suffix.lower() not in RECIPE_SUFFIXES:
                raise FileError(
                    f"{self.measure} is no name of a recipe",
                    OtherFile(f"name it in {' or '.join(RECIPE_SUFFIXES)}"),
                )
            check_writable(self.measure, own, *inputs)

    def as_recipe(self) -> Recipe:
        """Return the recipe with the mode, the accuracy and the steps."""
        options = (self.mode, self.accuracy, self.recover, self.ignore)
        return Recipe.of(self.recipe, *options)

    def for_format(self, name: str) -> QuantizeOptions:
        """Return the options with the target of files of a format, `target_for`.

        Raises:
            ExportError, PlanError: as for `target_for`.
        """
        return replace(self, target=target_for(name, self.target))
