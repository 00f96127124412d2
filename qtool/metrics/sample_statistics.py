"""Statistics of the outputs of several files per sample, from which metrics and errors follow.

Outputs are not stored: a few numbers per sample suffice for metrics, agreement and intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from qtool.core.errors import DataError
from qtool.core.remedies import DataEdit
from qtool.core.types import Array
from qtool.metrics.output_errors import OutputErrors

TOP = 5
"""Best classes that are stored of each sample."""

VALUES = 256
"""Most numbers of the first output of a sample that are kept, for metrics of regressions."""

CLASSES, TOKENS, NEXT_TOKENS = "classes", "tokens", "next tokens"
AGREEMENTS = {
    CLASSES: "top-1 agreement",
    TOKENS: "token agreement",
    NEXT_TOKENS: "next-token agreement",
}
"""What the outputs score -> the name of the agreement on it."""
"""What the first output scores: classes of samples, classes of tokens, the next token."""


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    """Numbers per sample, for every file.

    Attributes:
        classes: [files, n, 0 to 5] best classes; none if the first output cannot be class scores.
        signals: [n, outputs] sum of squares of the float outputs of the first file; of the logits
            alone for a language model. 0 where the first file gives NaN or Inf.
        noises: [files, n, outputs] sum of squared differences from the first file; Inf where a
            later file alone gives NaN or Inf.
        sizes: number of samples of each batch.
        not_finite: [files, n] number of outputs that are NaN or Inf.
        tokens: [n] number of compared tokens; 0 without scores per token.
        equal: [files, n] number of tokens with the best class of the first file.
        loss: [files, n] sum of the cross-entropy of next tokens, in nats.
        divergence: [files, n] sum over these tokens of the Kullback-Leibler divergence from the
            first file, in nats.
        values: [files, n, up to VALUES] the first output as it is, float32; none if it is larger or
            of varying size.
        outside: [files, n] share of the values of inputs that are outside the ranges of a file's
            scales, 0 to 1.
        n_classes: number of classes of the first output if it is one of [samples, classes]; else 0.
        scores: CLASSES, TOKENS, NEXT_TOKENS, or "" where nothing says that the output is scores.
        outputs: names of the outputs in `signals`, in the order of the model.
    """

    classes: Array
    signals: Array
    noises: Array
    sizes: tuple[int, ...]
    not_finite: Array
    tokens: Array
    equal: Array
    loss: Array
    divergence: Array
    values: Array
    outside: Array
    n_classes: int = 0
    scores: str = ""
    outputs: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.signals)

    def errors(self, file: int) -> OutputErrors:
        """Return the errors of the outputs of a file."""
        return OutputErrors(self.outputs, self.signals.T, self.noises[file].T, self.samples)

    def same_class(self, file: int) -> Array:
        """Return bool [n], whether a file has the best class of the first one."""
        same: Array = self.classes[0, :, 0] == self.classes[file, :, 0]
        return same

    def hits(self, labels: Array, count: int) -> Array:
        """Return bool [files, n], whether the label is among the best `count` classes."""
        among: Array = (self.classes[:, :, :count] == labels.reshape(1, -1, 1)).any(2)
        return among

    def with_classes(self) -> SampleStatistics:
        """Return the statistics with the first output as scores of classes, if it may be: labels of
        the user say so."""
        return replace(self, scores=CLASSES) if self.n_classes else self

    def without_classes(self) -> SampleStatistics:
        """Return the statistics with an output that may be scores of classes as numbers."""
        scores = "" if self.scores == CLASSES else self.scores
        return replace(self, classes=self.classes[:, :, :0], scores=scores)

    @property
    def signal(self) -> Array:
        """[n] sum of squares over all outputs."""
        total: Array = self.signals.sum(-1)
        return total

    @property
    def noise(self) -> Array:
        """[files, n] sum of squared differences over all outputs."""
        total: Array = self.noises.sum(-1)
        return total

    def arrays(self) -> dict[str, Array]:
        """Return everything as arrays, for `from_arrays`."""
        return {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> SampleStatistics:
        """Return the statistics of `arrays`.

        Raises:
            KeyError: an array is missing.
        """
        stored = {f.name: arrays[f.name] for f in fields(cls)}
        sizes = tuple(int(s) for s in stored.pop("sizes"))
        count, scores = int(stored.pop("n_classes")), str(stored.pop("scores"))
        outputs = tuple(str(name) for name in stored.pop("outputs"))
        return cls(**stored, sizes=sizes, n_classes=count, scores=scores, outputs=outputs)

    @classmethod
    def joined(cls, parts: Sequence[SampleStatistics]) -> SampleStatistics:
        """Return the statistics of consecutive samples as one."""
        if len({p.values.shape[2] for p in parts}) > 1:
            parts = [replace(p, values=p.values[:, :, :0]) for p in parts]
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(p, name) for p in parts], axis)
            for name, axis in _AXES.items()
        }
        sizes = tuple(size for p in parts for size in p.sizes)
        return replace(parts[0], **arrays, sizes=sizes)

    def chosen(self, index: Array) -> SampleStatistics:
        """Return the statistics of some samples, as one batch."""
        arrays: dict[str, Any] = {
            name: np.take(getattr(self, name), index, axis) for name, axis in _AXES.items()
        }
        return replace(self, **arrays, sizes=(len(index),))

    def by_batch(self) -> list[SampleStatistics]:
        """Return the statistics of each batch."""
        ends = np.cumsum(self.sizes)[:-1]
        columns = [np.split(getattr(self, name), ends, axis) for name, axis in _AXES.items()]
        return [
            replace(self, **dict(zip(_AXES, arrays, strict=True)), sizes=(size,))
            for size, *arrays in zip(self.sizes, *columns, strict=True)
        ]


_AXES = {
    "classes": 1,
    "signals": 0,
    "noises": 1,
    "not_finite": 1,
    "tokens": 0,
    "equal": 1,
    "loss": 1,
    "divergence": 1,
    "values": 1,
    "outside": 1,
}
"""Array -> its axis of samples."""


def check_finite(measured: SampleStatistics) -> None:
    """Check that the reference has finite outputs on some sample.

    Raises:
        DataError: it has none, so that nothing can be compared with it.
    """
    if measured.samples and (measured.not_finite[0] > 0).all():
        raise DataError(
            f"the float model outputs NaN or Inf on all {measured.samples} samples, so "
            "that there is nothing to compare with",
            DataEdit("check its weights and the preprocessing of the data"),
        )
