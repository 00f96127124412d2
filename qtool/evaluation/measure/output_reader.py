"""Turns the outputs of several files for one batch into statistics per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qtool.backends.session import Session
from qtool.core.errors import DataError
from qtool.core.output_evidence import Evidence
from qtool.core.remedies import OtherFile
from qtool.core.types import Array
from qtool.evaluation.language_model import LOGITS, LanguageModel
from qtool.metrics.compared_batches import compared_outputs
from qtool.metrics.output_kind import CLASS, output_kind
from qtool.metrics.sample_statistics import (
    CLASSES,
    NEXT_TOKENS,
    TOKENS,
    TOP,
    VALUES,
    SampleStatistics,
)
from qtool.metrics.token_scores import equal_tokens
from qtool.verification.strip_padding import Padding

Ranges = Mapping[int, tuple[float, float]]
"""Index of a float input -> the least and the largest value that its scale represents."""


@dataclass(frozen=True, eq=False)
class OutputReader:
    """Turns the outputs of one batch into statistics.

    Attributes:
        padding: padding of the first file.
        language_model: where tokens and logits of the first file are, as its first batch shows;
            None if it is no language model.
        names: names of the outputs.
        evidence: output -> what the first file says of it.
        scores_classes: whether the first output scores classes of samples, as far as the file and
            its first batch say so.
    """

    padding: Padding
    language_model: LanguageModel | None
    names: tuple[str, ...]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    scores_classes: bool = False

    @property
    def scores_tokens(self) -> bool:
        """Whether the first output scores tokens."""
        return self.language_model is not None or LOGITS in self.names[0]

    @classmethod
    def of(
        cls,
        model: Session,
        language_model: LanguageModel | None,
        evidence: Mapping[str, Evidence],
        outputs: Sequence[Array],
    ) -> OutputReader:
        """Return the reader of the outputs of a session.

        Args:
            model: the session.
            language_model: as the attribute.
            evidence: as the attribute.
            outputs: outputs for the first batch.
        """
        names = tuple(o.name for o in model.outputs)
        first, known = outputs[0], evidence.get(names[0], Evidence())
        scores = first.ndim == 2 and first.size and first.dtype.kind == "f"
        kind = output_kind(names[0], np.nan_to_num(first), known) if scores else None
        is_class = kind is not None and kind.kind == CLASS
        return cls(Padding.of_session(model), language_model, names, evidence, is_class)

    def compared(self, outputs: Sequence[Sequence[Array]]) -> tuple[list[str], list[list[Array]]]:
        """Return what can be compared value by value: names, and the outputs of each file.

        Raises:
            DataError: values decide how many rows each output has.
        """
        names, real, _ = compared_outputs(self.names, outputs[0], outputs[0], self.evidence)
        if not names:
            raise DataError(
                "values decide how many rows each output has, so that rows are not compared",
                OtherFile("compare files of the network before that selection"),
            )
        pairs = (
            compared_outputs(self.names, outputs[0], own, self.evidence) for own in outputs[1:]
        )
        return names, [real, *(coded for _, _, coded in pairs)]

    def read(
        self,
        arrays: Sequence[Array],
        outputs: Sequence[Sequence[Array]],
        ranges: Sequence[Ranges] = (),
    ) -> SampleStatistics:
        """Return the statistics of a batch.

        Args:
            arrays: inputs of the batch.
            outputs: per file, zero at padded positions (see `Padding.strip`).
            ranges: per file, see `Ranges`; () where none is known.
        """
        names, outputs = self.compared(outputs)
        first = outputs[0][0]
        size = len(first) if first.ndim else 1
        classes = [_top_classes(own[0], size) for own in outputs]
        compared = self._compared(outputs[0])
        signals, noises, not_finite = _errors(outputs, compared, size)
        scores, model, zeros = "", self.language_model, np.zeros((len(outputs), size))
        tokens, equal = zeros[0].astype(np.int64), zeros.astype(np.int64)
        loss = divergence = zeros
        if model is not None:
            scores = NEXT_TOKENS
            tokens, equal, loss, divergence = _next_tokens(model, arrays, outputs)
        elif LOGITS in self.names[0] and first.ndim == 3 and first.dtype.kind == "f":
            scores, best = TOKENS, [own[0].argmax(-1) for own in outputs]
            tokens, equal = equal_tokens(self._present(arrays, best[0].shape), best)
        n_classes = first.shape[1] if classes[0].shape[1] else 0
        return SampleStatistics(
            np.stack(classes),
            signals,
            noises,
            (size,),
            not_finite,
            tokens,
            equal,
            loss,
            divergence,
            np.stack([_values(own[0], size) for own in outputs]),
            np.stack([_outside(arrays, each, size) for each in ranges or [{}] * len(outputs)]),
            n_classes,
            CLASSES if n_classes and self.scores_classes else scores,
            tuple(names[i] for i in compared),
        )

    def _compared(self, outputs: Sequence[Array]) -> list[int]:
        """Return the indices of the outputs to compare: the float ones, whose errors have a size.

        The difference of two class numbers, for instance, says nothing. Of a language model these
        are the logits alone; of a model without float outputs all.
        """
        if self.language_model is not None:
            return [self.language_model.logits]
        real = [i for i, output in enumerate(outputs) if output.dtype.kind == "f"]
        return real or list(range(len(outputs)))

    def _present(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Return bool [samples, tokens]: False at padded positions."""
        if self.padding.mask is None or 1 not in self.padding.axes[0]:
            return np.ones(shape, bool)
        mask: Array = arrays[self.padding.mask] != 0
        return mask if mask.shape == shape else np.ones(shape, bool)


def _next_tokens(
    model: LanguageModel, arrays: Sequence[Array], outputs: Sequence[Sequence[Array]]
) -> tuple[Array, Array, Array, Array]:
    """Return the number of next tokens of each sample, and for every file that of equal ones, their
    loss and their divergence."""
    compared = model.predicted(arrays)
    logits = [o[model.logits] for o in outputs]
    best = [x[:, :-1].argmax(-1) for x in logits]
    loss = np.stack([model.losses(arrays, x).sum(1) for x in logits])
    first, *others = logits
    apart = [model.divergences(arrays, first, x).sum(1) for x in others]
    return *equal_tokens(compared, best), loss, np.stack([np.zeros(len(first)), *apart])


def _errors(
    outputs: Sequence[Sequence[Array]], indices: Sequence[int], size: int
) -> tuple[Array, Array, Array]:
    """Return signals and noises of the chosen outputs, and the number of NaN and Inf."""
    rows = [[_rows(own[i], size) for i in indices] for own in outputs]
    not_finite = np.stack([sum((~np.isfinite(a)).sum(1) for a in own) for own in rows])
    with np.errstate(invalid="ignore", over="ignore"):
        signals = np.stack([np.square(a).sum(1) for a in rows[0]], 1)
        noises = np.stack([_noise(rows[0], own) for own in rows])
    noises[~np.isfinite(noises)] = np.inf
    unknown = not_finite[0] > 0
    signals[unknown], noises[:, unknown] = 0.0, 0.0
    return signals, noises, not_finite


def _noise(reference: Sequence[Array], rows: Sequence[Array]) -> Array:
    pairs = zip(reference, rows, strict=True)
    return np.stack([np.square(a - b).sum(1) for a, b in pairs], 1)


def _rows(array: Array, size: int) -> Array:
    return array.reshape(size, -1).astype(np.float64)


def _values(output: Array, size: int) -> Array:
    """Return the numbers of each sample, [n, values]; [n, 0] for others than `values` has."""
    few = output.size <= VALUES * size and output.dtype.kind == "f"
    return output.reshape(size, -1).astype(np.float32) if few else np.zeros((size, 0), np.float32)


def _outside(arrays: Sequence[Array], ranges: Ranges, size: int) -> Array:
    """Return [n] the share of the values of inputs that are outside their ranges."""
    share, count = np.zeros(size), 0
    for index, (low, high) in ranges.items():
        if arrays[index].shape[:1] == (size,):
            rows = arrays[index].reshape(size, -1).astype(np.float64)
            share += ((rows < low) | (rows > high)).sum(1)
            count += rows.shape[1]
    return share / max(count, 1)


def _top_classes(scores: Array, size: int) -> Array:
    """Return [n, up to 5] best classes, ties in order of class; [n, 0] for other outputs."""
    if scores.ndim != 2 or scores.shape[1] < 2 or scores.dtype.kind != "f":
        return np.zeros((size, 0), np.int32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
    return order.astype(np.int32)
