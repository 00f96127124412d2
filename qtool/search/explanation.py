"""Explanations of changed predictions: the layers to keep in float, for each sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from qtool.core.formats import table
from qtool.core.records import to_json


@dataclass(frozen=True)
class Flip:
    """One sample whose prediction changed.

    Attributes:
        index: of the sample in the data.
        expected, predicted: class predicted by the float and by the quantized model.
        margin: score of the expected class minus the best other one, in the float model.
        quantized_margin: the same in the quantized model (negative).
        layers: the layers to keep in float.
        gains: share of the required gain that each of these layers reaches alone.
        fixed: True if these layers in float restore the prediction in ONNX Runtime.
        runs: number of partial runs of the network.
    """

    index: int
    expected: int
    predicted: int
    margin: float
    quantized_margin: float
    layers: tuple[str, ...]
    gains: tuple[float, ...]
    fixed: bool
    runs: int

    def __str__(self) -> str:
        layers = ", ".join(
            f"{name} ({100 * share:.0f} % of the required gain alone)"
            for name, share in zip(self.layers, self.gains, strict=True)
        )
        end = "fixes it" if self.fixed else "does not fix it"
        return (
            f"sample {self.index}: float predicts {self.expected} (margin {self.margin:.4g}), "
            f"int8 predicts {self.predicted} (margin {-self.quantized_margin:.4g}); "
            f"keeping {layers} in float {end}"
        )


class LayerFlips(NamedTuple):
    """A layer, and the number of changed predictions that it causes."""

    layer: str
    flips: int


@dataclass(frozen=True)
class Explanation:
    """Changed predictions of a quantized model.

    Attributes:
        samples: number of samples.
        changed: number of changed predictions.
        flips: the explained ones.
    """

    JSON_PROPERTIES: ClassVar = ("layers",)

    samples: int
    changed: int
    flips: tuple[Flip, ...]

    @property
    def layers(self) -> tuple[LayerFlips, ...]:
        """The layers to keep in float, those of most flips first."""
        counts = Counter(n for f in self.flips for n in f.layers).most_common()
        return tuple(LayerFlips(*each) for each in counts)

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_json(self)
        return fields

    def __str__(self) -> str:
        head = f"{self.changed} of {self.samples} predictions changed"
        if not self.flips:
            return head
        fixed = sum(f.fixed for f in self.flips)
        lines = [f"{head}; {fixed} of {len(self.flips)} are fixed by keeping layers in float"]
        if len(self.flips) == 1:
            return "\n".join([head, str(self.flips[0])])
        rows = [(n, str(c), f"{100 * c / len(self.flips):.0f} %") for n, c in self.layers]
        lines += ["", table(("layer", "flips", "share"), rows), ""]
        return "\n".join([*lines, *map(str, self.flips)])
