"""Explanations of changed predictions: the layers to keep in float, for each sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from qtool.core.formats import table
from qtool.core.records import to_json


@dataclass(frozen=True)
class Flip:
    """One sample whose prediction changed.

    Attributes:
        index: of the sample in the data.
        expected, given: class predicted by the float and by the quantized model.
        margin: score of the expected class minus the best other one, in the float model.
        behind: the same in the quantized model (negative).
        layers: the layers to keep in float.
        moved: share of the required gain that each of these layers reaches alone.
        mended: True if these layers in float restore the prediction in ONNX Runtime.
        runs: number of partial runs of the network.
    """

    index: int
    expected: int
    given: int
    margin: float
    behind: float
    layers: tuple[str, ...]
    moved: tuple[float, ...]
    mended: bool
    runs: int

    def __str__(self) -> str:
        layers = ", ".join(
            f"{name} ({100 * share:.0f} % of the required gain alone)"
            for name, share in zip(self.layers, self.moved, strict=True)
        )
        end = "fixes it" if self.mended else "does not fix it"
        return (
            f"sample {self.index}: float predicts {self.expected} (margin {self.margin:.4g}), "
            f"int8 predicts {self.given} (margin {-self.behind:.4g}); "
            f"keeping {layers} in float {end}"
        )


@dataclass(frozen=True)
class Explanation:
    """Changed predictions of a quantized model.

    Attributes:
        samples: number of samples.
        changed: number of changed predictions.
        flips: the explained ones.
    """

    samples: int
    changed: int
    flips: tuple[Flip, ...]

    @property
    def behind(self) -> tuple[tuple[str, int], ...]:
        """(layer, number of flips that it causes), most first."""
        return tuple(Counter(n for f in self.flips for n in f.layers).most_common())

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_json(self)
        return {**fields, "behind": [list(pair) for pair in self.behind]}

    def __str__(self) -> str:
        head = f"{self.changed} of {self.samples} predictions changed"
        if not self.flips:
            return head
        mended = sum(f.mended for f in self.flips)
        lines = [f"{head}; {mended} of {len(self.flips)} are fixed by keeping layers in float"]
        if len(self.flips) == 1:
            return "\n".join([head, str(self.flips[0])])
        rows = [(n, str(c), f"{100 * c / len(self.flips):.0f} %") for n, c in self.behind]
        lines += ["", table(("layer", "flips", "share"), rows), ""]
        return "\n".join([*lines, *map(str, self.flips)])
