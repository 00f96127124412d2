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
        margins: score of the expected class minus the best other one, in the float model and in the
            quantized one (negative).
        layers: the layers to keep in float.
        fixed: True if these layers in float restore the prediction in ONNX Runtime.
        token: position in the text of the token after which another one is predicted, from 0; None
            for classes.
        names: name of the sample's file, or the begin of its text, and names of both classes; "" if
            unknown.
    """

    index: int
    expected: int
    predicted: int
    margins: tuple[float, float]
    layers: tuple[str, ...]
    fixed: bool
    token: int | None = None
    names: tuple[str, str, str] = ("", "", "")

    def __str__(self) -> str:
        name, expected, predicted = self.names
        sample = f"{name} (sample {self.index})" if name else f"sample {self.index}"
        sample += "" if self.token is None else f", after token {self.token}"
        end = "fixes it" if self.fixed else "does not fix it in the runtime"
        return (
            f"{sample}: float predicts {expected or self.expected} (margin {self.margins[0]:.4g}), "
            f"quantized predicts {predicted or self.predicted} (margin {-self.margins[1]:.4g}); "
            f"keeping {', '.join(self.layers)} in float {end}"
        )


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
        flips = []
        for flip in self.flips:
            classes = names.class_(flip.expected), names.class_(flip.predicted)
            flips.append(replace(flip, names=(names.sample(flip.index), *classes)))
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
