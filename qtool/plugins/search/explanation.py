"""Explanations of changed predictions: the layers to keep in float, for each sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from qtool.core.number_texts import part, percent, quantity, table
from qtool.core.records import JsonRecord
from qtool.core.summary import Summarized, Summary, group_names
from qtool.frontends.data.sample_names import SampleNames


@dataclass(frozen=True)
class Flip:
    """One sample whose prediction changed.

    Attributes:
        index: index of the sample in the data.
        expected, predicted: class predicted by the float and by the quantized model.
        margin: score of the expected class minus the best other one, in the float model.
        quantized_margin: the same in the quantized model (negative).
        layers: the layers to keep in float.
        gains: share of the required gain that each of these layers reaches alone.
        fixed: True if these layers in float restore the prediction in ONNX Runtime.
        runs: number of partial runs of the network.
        token: position in the text of the token after which another one is predicted, from 0; None
            for classes.
        name: name of the sample's file, or the begin of its text; "" if the data has no names.
        expected_name, predicted_name: names of these classes; "" if unknown.
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
    token: int | None = None
    name: str = ""
    expected_name: str = ""
    predicted_name: str = ""

    def __str__(self) -> str:
        sample = f"{self.name} (sample {self.index})" if self.name else f"sample {self.index}"
        sample += "" if self.token is None else f", after token {self.token}"
        end = "fixes it" if self.fixed else "does not fix it in the runtime"
        return (
            f"{sample}: float predicts {self.expected_name or self.expected} "
            f"(margin {self.margin:.4g}), quantized predicts "
            f"{self.predicted_name or self.predicted} (margin {-self.quantized_margin:.4g}); "
            f"keeping {', '.join(self.layers)} in float {end}{self._parts}"
        )

    @property
    def _parts(self) -> str:
        """How far each of several layers goes; of one that fixes it nothing is left to say."""
        if self.fixed and len(self.layers) == 1:
            return ""
        parts = zip(self.layers, self.gains, strict=True)
        return f" ({', '.join(f'{name} alone {_describe_gain(gain)}' for name, gain in parts)})"


def _describe_gain(gain: float) -> str:
    if gain >= 1:
        return "goes all the way"
    return f"goes {100 * gain:.0f} % of the way" if gain > 0 else "does not help"


class LayerFlips(NamedTuple):
    """A layer, and the number of changed predictions that it causes."""

    layer: str
    flips: int


@dataclass(frozen=True)
class Explanation(Summarized, JsonRecord):
    """Changed predictions of a quantized model.

    Attributes:
        samples: number of samples.
        changed: number of samples with a changed prediction.
        flips: the explained ones.
        tokens: number of predictions of a language model, one after each token; 0 for classes.
        changed_tokens: number of those that changed.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("layers",)

    samples: int
    changed: int
    flips: tuple[Flip, ...]
    tokens: int = 0
    changed_tokens: int = 0

    @property
    def layers(self) -> tuple[LayerFlips, ...]:
        """The layers to keep in float, those of most flips first."""
        counts = Counter(n for f in self.flips for n in f.layers).most_common()
        return tuple(LayerFlips(*each) for each in counts)

    def named(self, names: SampleNames) -> Explanation:
        """Return the explanation with the names of its samples and their classes."""
        flips = (
            replace(
                f,
                name=names.sample(f.index),
                expected_name=names.class_(f.expected),
                predicted_name=names.class_(f.predicted),
            )
            for f in self.flips
        )
        return replace(self, flips=tuple(flips))

    def summary(self, title: str = "quantized") -> Summary:
        """Return the result in a few lines."""
        text = f"{self.changed} of {self.samples:,} predictions changed"
        if self.tokens:
            share = percent(self.changed_tokens / self.tokens)
            text = (
                f"{self.changed_tokens:,} of {self.tokens:,} next tokens changed ({share}), in "
                f"{self.changed:,} of {quantity(self.samples, 'text')}"
            )
        if not self.flips:
            return Summary(title, text, ())
        fixed = part(sum(f.fixed for f in self.flips), len(self.flips))
        most = [f"{name} ({count})" for name, count in self.layers]
        rows = (
            ("fixed", f"{fixed} by keeping layers in float"),
            ("layers", group_names(most)),
        )
        return Summary(title, text, rows)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.table(), str(self.summary())]))

    def table(self) -> str:
        """Return the layers with the number of predictions that each changes, and each of these."""
        if len(self.flips) < 2:
            return "\n".join(map(str, self.flips))
        rows = [(n, str(c), percent(c / len(self.flips), 0)) for n, c in self.layers]
        flips = "\n".join(map(str, self.flips))
        return f"{flips}\n\n{table(('layer', 'flips', 'share'), rows)}"
