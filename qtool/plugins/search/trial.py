"""An evaluated file of a search, and the key of its recipe."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.planning.recipe import Recipe
from qtool.plugins.search.judge import Score


@dataclass(frozen=True)
class Trial:
    """One evaluated file.

    Attributes:
        key: key of its recipe.
        accuracy: accuracy level of its recipe.
        choices: precision of each layer.
        score: error and metric.
        speed: float time / its time.
        size: bytes of the file.
        share: share of the MACs in integer kernels.
        seconds: duration of the evaluation.
    """

    key: str
    accuracy: str
    choices: tuple[str, ...]
    score: Score
    speed: Ratio
    size: int
    share: float
    seconds: float

    @property
    def speedup(self) -> float:
        """Median of the speed-ups over float."""
        return self.speed.median

    @property
    def counts(self) -> str:
        """How many layers have each precision, as text."""
        return ", ".join(f"{count} {name}" for name, count in Counter(self.choices).items())


def recipe_key(recipe: Recipe) -> str:
    """Return the key of a recipe: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(recipe.to_json()).encode()).hexdigest()[:16]
