"""The metrics of a gate: what each takes of the outputs, and its value on any of the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from qtool.core.errors import DataError, OptionError, describe
from qtool.core.number_texts import percent
from qtool.core.option_names import unknown_name
from qtool.core.output_evidence import Evidence
from qtool.core.remedies import Argument, CallEdit, DataEdit
from qtool.core.types import Array
from qtool.core.user_code import user_place
from qtool.metrics.drop import GROUPS, Values
from qtool.metrics.labels import check_classes, check_labels
from qtool.metrics.metric import PERPLEXITY
from qtool.metrics.output_agreement import output_agreement
from qtool.metrics.output_kind import COSINE, KINDS
from qtool.metrics.ranks import rank_correlation
from qtool.metrics.regression import explained_share, targets_of
from qtool.metrics.sample_statistics import CLASSES, NEXT_TOKENS, SampleStatistics
from qtool.metrics.set_statistics import (
    average_precision,
    decode,
    f1_terms,
    mean_f1,
    recall_hits,
    word_errors,
)
from qtool.metrics.vector_output import VectorOutput

AGREEMENT = "agreement"
_USER_GROUPS = 20  # a user's function may be slow
_FEW = 8  # samples whose answers may be the same by chance
_CONSTANT, _USUAL = 0.99, 0.9
"""Share of one answer that is no classification, and of one label that makes such answers right."""

Outputs = Sequence[Array]


@dataclass(frozen=True, eq=False)
class Samples:
    """What a pass over both files kept.

    Attributes:
        statistics: those of both files, the float one first.
        outputs: what the metric keeps of both files, [samples, ...] each.
        vectors: the output that has the vectors of the samples.
        is_pooled: whether it has states of tokens.
        has_mask: whether an attention mask says which tokens are padded.
        evidence: what the float file says of its first output.
    """

    statistics: SampleStatistics
    outputs: tuple[Any, Any]
    vectors: VectorOutput
    is_pooled: bool
    has_mask: bool
    evidence: Evidence = Evidence()  # noqa: RUF009  # it is frozen

    @property
    def of(self) -> str:
        """What the vectors are of."""
        return self.vectors.text(self.is_pooled)

    def chosen(self, index: Array) -> Samples:
        """Return some of the samples."""
        outputs = [
            tuple(o[index] for o in own) if isinstance(own, tuple) else own[index]
            for own in self.outputs
        ]
        chosen = self.statistics.chosen(index)
        return replace(self, statistics=chosen, outputs=(outputs[0], outputs[1]))


@dataclass(frozen=True, eq=False)
class Measured:
    """A metric of both files.

    Attributes:
        name: its name for a user.
        percent: whether it is a share, shown in percent.
        higher_is_better: False for errors.
        samples: number of samples of which it is a statistic.
        values: see `Values`.
        hits: bool [samples] of both files, if it is a share of samples; None for other statistics.
        output: the output that has the vectors, and their pooling, or of several the one whose
            agreement it is; "" for other metrics.
    """

    name: str
    percent: bool
    higher_is_better: bool
    samples: int
    values: Values
    hits: tuple[Array, Array] | None = None
    output: str = ""


def _keep_nothing(outputs: Outputs, _: VectorOutput) -> Array:
    return np.zeros((len(outputs[0]) if outputs[0].ndim else 1, 0), np.float32)


def _keep_first(outputs: Outputs, _: VectorOutput) -> Array:
    return outputs[0]


def _keep_all(outputs: Outputs, _: VectorOutput) -> tuple[Array, ...]:
    return tuple(outputs)


def _keep_vectors(outputs: Outputs, output: VectorOutput) -> Array:
    return output.vectors(outputs)


@dataclass(frozen=True)
class GateMetric:
    """A metric that a gate knows.

    Attributes:
        measure: returns the metric from samples, labels and the number in its name.
        labels: what labels it needs; "" if none, None if it takes any that there are.
        keep: what it keeps of the outputs of a batch, given the one that has vectors.
        number: the number after @, if the name has none; None where it has to have one.
        groups: number of groups of samples for its interval.
        counts_tokens: whether the statistics have all that it needs of logits of tokens.
        percent: whether it is a share whatever the outputs are.
    """

    measure: Callable[[Samples, Any, int], Measured]
    labels: str | None = ""
    keep: Callable[[Outputs, VectorOutput], Any] = _keep_nothing
    number: int | None = 0
    groups: int = GROUPS
    counts_tokens: bool = False
    percent: bool = False

    def keep_of_tokens(self, outputs: Outputs, output: VectorOutput) -> Any:
        """Return what it keeps where the outputs are logits of tokens, which are large."""
        return (_keep_nothing if self.counts_tokens else self.keep)(outputs, output)


def _shares(name: str, hits: Array, others: Array) -> Measured:
    pair = (hits.astype(bool), others.astype(bool))
    values = _statistic(_mean, *pair)
    return Measured(name, True, True, len(hits), values, pair)


def _mean(terms: Array) -> float:
    return float(terms.mean())


def _statistic(function: Callable[[Array], float], real: Array, other: Array) -> Values:
    """Return the values of a statistic of terms, [samples, ...] of each file."""
    return lambda index: (function(real[index]), function(other[index]))


def _agreement(samples: Samples, labels: Array, _: int) -> Measured:
    known = samples.statistics
    if known.tokens.sum():
        terms = [np.stack([known.equal[i], known.tokens], 1) for i in (0, 1)]
        ratio = _statistic(_ratio, *terms)
        return Measured(AGREEMENT, True, True, known.samples, ratio)
    (real, other), name = samples.outputs, known.outputs[0]
    first = name if len(known.outputs) > 1 else ""
    if known.scores == CLASSES:
        best = known.classes[:, :, 0]
        if known.samples >= _FEW and (best[0] == best[0, 0]).all():
            raise DataError(
                f"the float file answers class {best[0, 0]} on all samples",
                DataEdit("check the preprocessing of the data"),
            )
        same = _shares(AGREEMENT, np.ones(known.samples, bool), known.same_class(1))
        return replace(same, output=first)
    whole = output_agreement(name, real, other, samples.evidence)
    if whole is None:
        raise DataError(
            "the first output has no scores, vectors or numbers whose agreement is known",
            Argument("--metric", text="name another {}, or a function"),
        )
    if whole.caution:
        raise DataError(whole.caution, DataEdit("give samples that show others"))
    kind = whole.kind
    is_pooled = kind == COSINE and real.ndim == 3 and samples.has_mask
    if is_pooled:
        real, other = (samples.vectors.pooled(each) for each in (real, other))
    of = replace(samples.vectors, name=name).text(is_pooled) if kind == COSINE else first

    named = samples.evidence._replace(kind=kind if kind in KINDS else "")

    def values(index: Array) -> tuple[float, float]:
        part = output_agreement(name, real[index], other[index], named)
        return 1.0, part.value if part is not None and part.kind == kind else math.nan

    return Measured(f"agreement ({kind})", False, True, known.samples, values, output=of)


def _top(samples: Samples, labels: Array, count: int) -> Measured:
    known = samples.statistics
    check_labels(labels, known.samples)
    if known.classes.shape[2] < count:
        raise DataError(f"top-{count} needs [samples, classes] scores as the first output")
    numbers = labels.reshape(-1)
    check_classes(numbers, known.n_classes)
    answer, answered = _most_frequent(known.classes[0, :, 0])
    if known.samples >= _FEW and answered > _CONSTANT and _most_frequent(numbers)[1] < _USUAL:
        raise DataError(
            f"the float file answers class {answer} on {percent(answered)} of the samples",
            DataEdit("check the preprocessing of the data"),
        )
    return _shares(f"top-{count}", *known.hits(numbers, count))


def _most_frequent(numbers: Array) -> tuple[int, float]:
    """Return the most frequent number and its share."""
    values, counts = np.unique(numbers, return_counts=True)
    return int(values[counts.argmax()]), float(counts.max() / len(numbers))


def _perplexity(samples: Samples, labels: Array, _: int) -> Measured:
    known = samples.statistics
    if known.scores != NEXT_TOKENS:
        raise DataError("the float file is no causal language model, so it has no perplexity")
    terms = [np.stack([known.loss[i], known.tokens], 1) for i in (0, 1)]
    values = _statistic(lambda a: float(np.exp(np.minimum(_ratio(a), 700))), *terms)
    return Measured(PERPLEXITY, False, False, known.samples, values)


def _ratio(terms: Array) -> float:
    total = terms.sum(0)
    return float(total[0] / total[1]) if total[1] else math.nan


def _f1(samples: Samples, labels: Array, _: int) -> Measured:
    terms = f1_terms(*samples.outputs, labels)
    return Measured("F1", True, True, len(labels), _statistic(mean_f1, *terms))


def _spearman(samples: Samples, labels: Array, _: int) -> Measured:
    rows = []
    for output in samples.outputs:
        numbers = output.reshape(len(output), -1).astype(np.float64)
        if numbers.shape[1] > 1:
            if len(numbers) != 2 * len(labels):
                raise DataError(
                    f"{len(labels)} labels for {len(numbers)} vectors",
                    DataEdit("give one per pair of consecutive samples"),
                )
            units = numbers / np.maximum(np.linalg.norm(numbers, axis=1, keepdims=True), 1e-30)
            numbers = (units[::2] * units[1::2]).sum(1, keepdims=True)
        check_labels(labels, len(numbers))
        rows.append(np.stack([numbers[:, 0], labels.reshape(-1).astype(np.float64)], 1))
    values = _statistic(lambda a: rank_correlation(*a.T), *rows)
    return Measured("Spearman", False, True, len(labels), values, output=samples.of)


def _regression(name: str, samples: Samples, labels: Array, _: int) -> Measured:
    """Return an error of predicted numbers, or R2."""
    known = samples.statistics
    targets = targets_of(known, labels)
    if targets is None:
        raise DataError(f"{name} needs labels that are numbers to predict, not classes")
    errors = known.values.astype(np.float64) - targets
    if name == "R2":
        terms = [np.stack([each, targets], 1) for each in errors]
        share = _statistic(lambda a: explained_share(a[:, 0], a[:, 1]), *terms)
        return Measured(name, False, True, known.samples, share)
    of = np.abs if name == "MAE" else np.square
    mean = _statistic(lambda a: float(a.mean()), *of(errors).mean(2))
    return Measured(name, False, False, known.samples, mean)


def _recall(samples: Samples, labels: Array, count: int) -> Measured:
    check_labels(labels, len(samples.outputs[0]))
    hits = [recall_hits(o, labels.reshape(-1), count) for o in samples.outputs]
    return replace(_shares(f"recall@{count}", *hits), output=samples.of)


def _map(samples: Samples, labels: Array, _: int) -> Measured:
    real = samples.outputs[0]
    if real.ndim != 2:
        raise DataError("mAP needs [samples, classes] scores as the first output")
    if labels.ndim == 1:
        check_classes(labels, real.shape[1])
        labels = np.eye(real.shape[1])[labels.astype(np.int64)]
    if labels.shape != real.shape:
        raise DataError(f"the labels have shape {list(labels.shape)}, not {list(real.shape)}")
    terms = [np.stack([o, labels], 1) for o in samples.outputs]
    return Measured("mAP", True, True, len(real), _statistic(average_precision, *terms))


def _wer(samples: Samples, labels: Array, blank: int) -> Measured:
    check_labels(labels[:, 0] if labels.ndim == 2 else labels, len(samples.outputs[0]))
    if labels.ndim != 2 or labels.dtype.kind not in "iu":
        raise DataError("WER needs labels of whole numbers, [samples, words], padded with -1")
    terms = [word_errors(decode(output, blank), labels) for output in samples.outputs]
    return Measured("WER", True, False, len(labels), _statistic(_ratio, *terms))


METRICS: dict[str, GateMetric] = {
    AGREEMENT: GateMetric(_agreement, keep=_keep_first, counts_tokens=True),
    "top-1": GateMetric(_top, "class numbers", number=1, percent=True),
    "top-5": GateMetric(_top, "class numbers", number=5, percent=True),
    "f1": GateMetric(_f1, "class numbers, or 0 and 1 per output", _keep_first, percent=True),
    "map": GateMetric(_map, "classes", _keep_first, percent=True),
    **{
        name.lower(): GateMetric(partial(_regression, name), "numbers")
        for name in ("MAE", "MSE", "R2")
    },
    "recall": GateMetric(_recall, "group numbers", _keep_vectors, None, percent=True),
    "spearman": GateMetric(_spearman, "numbers", _keep_vectors),
    "wer": GateMetric(_wer, "words as numbers", _keep_first, percent=True),
    PERPLEXITY: GateMetric(_perplexity),
}
"""Name -> metric; a number follows @, such as recall@10."""


def find_metric(name: str) -> tuple[GateMetric, int]:
    """Return a metric and the number in its name.

    Raises:
        OptionError: there is no such metric.
    """
    base, _, number = name.lower().partition("@")
    if base not in METRICS or (number and not number.isdecimal()):
        known = [*METRICS, "module:function"]
        raise OptionError(unknown_name("metric", name, known))
    metric = METRICS[base]
    if not number and metric.number is None:
        raise OptionError(f"{base} needs a number, such as {base}@10")
    if number and base not in ("recall", "wer"):
        raise OptionError(f"{base} takes no number", CallEdit(f"write {base}"))
    return metric, int(number) if number else metric.number or 0


def user_metric(
    function: Callable[[Any, Any], Any], where: str, higher_is_better: bool
) -> GateMetric:
    """Return the metric of a function of outputs and labels.

    Args:
        function: takes the outputs, an array [samples, ...] or of several outputs a tuple of these,
            and the labels, or None; returns a number, or [samples] numbers.
        where: its name in errors.
        higher_is_better: False for an error or a loss.
    """

    def call(outputs: Any, labels: Any) -> Array:
        some = outputs[0] if len(outputs) == 1 else outputs
        try:
            result = np.asarray(function(some, labels), np.float64)
        except (Exception, SystemExit) as error:
            raise DataError(f"{where} failed: {describe(error)}{user_place(error)}") from error
        if result.ndim > 1 or result.shape not in ((), (len(outputs[0]),)):
            raise DataError(
                f"{where} returned shape {list(result.shape)}", CallEdit("return a number")
            )
        if (wrong := ~np.isfinite(result)).any():
            raise DataError(
                f"{where} returned {result[wrong][0]} on {len(outputs[0])} samples",
                CallEdit("return a number for any samples"),
            )
        return result

    def measure(samples: Samples, labels: Any, _: int) -> Measured:
        count = len(samples.outputs[0][0])
        if labels is not None and (known := len(np.atleast_1d(labels))) != count:
            raise DataError(
                f"{known} labels for {count} samples of {where}",
                DataEdit("give one label per sample; 'spearman' takes one per pair"),
            )
        whole = [call(outputs, labels) for outputs in samples.outputs]
        if whole[0].ndim:
            if np.isin(whole, (0, 1)).all():
                return _shares(where, *whole)
            mean = _statistic(_mean, *whole)
            return Measured(where, False, higher_is_better, count, mean)

        def values(index: Array) -> tuple[float, float]:
            own = labels if labels is None else labels[index]
            real, other = (
                float(call(tuple(o[index] for o in outputs), own)) for outputs in samples.outputs
            )
            return real, other

        return Measured(where, False, higher_is_better, count, values)

    return GateMetric(measure, None, keep=_keep_all, groups=_USER_GROUPS)
