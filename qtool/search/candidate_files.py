"""Files of candidates: written once each, timed against the float model, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qtool.backends.table import open_file
from qtool.conversion.quantized import Quantized
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.core.types import Array
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.planning.recipe import Recipe
from qtool.search.archive import recipe_key
from qtool.search.measured_speedups import measure_speedups


@dataclass(frozen=True)
class CandidateFiles:
    """Writes and times the files of a search.

    Attributes:
        folder: for the files.
        float_file: the float model, which times are relative to.
        inputs: arrays of one run, to time files with.
        timing: seconds to time each file.
        convert: returns the quantized model of a recipe.
        profiled: a file of the float model with the user's names.
        suffix: of the files: of their format.
    """

    folder: Path
    float_file: Path
    inputs: Sequence[Array]
    timing: float
    convert: Callable[[Recipe], Quantized]
    profiled: Path
    suffix: str = MODEL_SUFFIXES[0]

    def write(self, recipe: Recipe, model: Quantized | None = None) -> Path:
        """Return the file of a recipe; written on the first call.

        Args:
            model: that of the recipe, if it is known already.
        """
        file = self.folder / f"{recipe_key(recipe)}{self.suffix}"
        if not file.exists():
            (model or self.convert(recipe)).export(file, verify=False)
        return file

    def speedups(self, files: Sequence[Path]) -> tuple[Ratio, ...]:
        """Time files against the float model and each other, in turns."""
        return measure_speedups(self.float_file, files, self.inputs, self.timing)


def file_bytes(file: Path) -> int:
    """Return the size of a file with its external data."""
    return sum(f.stat().st_size for f in open_file(file).parts)
