"""Metrics that need no function of the user: with labels, or as agreement with the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from qtool.core.errors import DataError
from qtool.core.types import Array
from qtool.metrics.intervals import CONFIDENCE, Interval, exact_share_interval
from qtool.metrics.labels import check_classes, check_labels
from qtool.metrics.metric import Metric, make_metric, perplexity_metric
from qtool.metrics.output_agreement import OutputAgreement
from qtool.metrics.regression import BY_FUNCTION, regression_metrics, targets_of
from qtool.metrics.sample_ratios import clustered_share_interval
from qtool.metrics.sample_statistics import CLASSES, NEXT_TOKENS, TOP, SampleStatistics


def built_in_metrics(
    measured: SampleStatistics, labels: ArrayLike | None, confidence: float = CONFIDENCE
) -> list[Metric]:
    """Return top-1 and top-5 with labels, errors with numbers to predict, the perplexity of a
    language model without.

    Raises:
        DataError: wrong number of labels, labels that are no classes, or a first output without
            scores.
    """
    if (targets := targets_of(measured, labels)) is not None:
        return regression_metrics(measured, targets, confidence)
    if labels is not None:
        return _label_metrics(measured, np.asarray(labels), confidence)
    if measured.scores != NEXT_TOKENS or not measured.tokens.sum():
        return []
    return [perplexity_metric(measured.loss, measured.tokens, confidence)]


def _label_metrics(measured: SampleStatistics, labels: Array, confidence: float) -> list[Metric]:
    check_labels(labels, measured.samples)
    labels = labels.reshape(-1)
    if not measured.n_classes:
        raise DataError(
            "labels need [samples, classes] scores as the first output",
            BY_FUNCTION,
        )
    check_classes(labels, measured.n_classes)
    has_five = measured.classes.shape[2] == TOP and measured.n_classes > 2 * TOP
    return [
        make_metric(
            f"top-{count}",
            measured.hits(labels, count),
            "built in",
            percent=True,
            confidence=confidence,
        )
        for count in ((1, TOP) if has_five else (1,))
    ]


def agreement_metric(
    measured: SampleStatistics,
    yardsticks: Sequence[OutputAgreement] = (),
    confidence: float = CONFIDENCE,
) -> Metric | None:
    """Return the agreement of the second file with the first; None without a yardstick.

    Args:
        measured: statistics of both files.
        yardsticks: what the outputs agree in, for those that are no scores; the lowest counts.
        confidence: probability of the interval of scores; that of a yardstick is 95 %.
    """
    share = agreement_with_reference(measured, 1, confidence)
    if share is None:
        return _lowest(yardsticks)
    drop = Interval(1 - share.value, 1 - share.high, 1 - share.low)
    values, drops = (1.0, share.value), (0.0, drop.value)
    return Metric("agreement with float", True, True, "built in", values, drops, (None, drop))


def _lowest(yardsticks: Sequence[OutputAgreement]) -> Metric | None:
    """Return the lowest of what outputs agree in; None without any."""
    if not yardsticks:
        return None
    each = min(yardsticks, key=lambda each: each.value)
    ends, name = each.interval, f"agreement with float ({each.kind})"
    drop = None if ends is None else Interval(1 - each.value, 1 - ends[1], 1 - ends[0])
    values, drops = (1.0, each.value), (0.0, 1 - each.value)
    return Metric(name, False, True, "built in", values, drops, (None, drop))


def agreement_with_reference(
    measured: SampleStatistics, model: int, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the share of samples, or of tokens, with the best class of the reference.

    Its interval is that of `output_agreement`: tokens of one text depend on each other, and those
    of a single text are all that is known.
    """
    counts = measured.tokens.astype(np.float64)
    hits = measured.equal[model].astype(np.float64)
    if measured.scores == CLASSES:
        hits = measured.same_class(model).astype(np.float64)
        counts = np.ones(len(hits))
    total = float(counts.sum())
    if not total:
        return None
    ends = clustered_share_interval(hits, counts, confidence)
    same = float(hits.sum())
    return Interval(same / total, *(ends or exact_share_interval(same, total, confidence)))
