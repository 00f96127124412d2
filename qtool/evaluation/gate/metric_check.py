"""What the metric of a gate says: values of both files, the drop with its interval, the outcome."""

from __future__ import annotations

import math

import numpy as np

from qtool.core.argument_names import argument
from qtool.core.errors import DataError
from qtool.core.number_texts import percent, quantity
from qtool.core.remedies import DataEdit
from qtool.core.types import Array
from qtool.evaluation.gate.data_checks import FEW
from qtool.evaluation.gate.result import GateCheck, GateMetricResult, Outcome
from qtool.evaluation.options import GateOptions
from qtool.metrics.drop import Drop, jackknife_drop, share_drop
from qtool.metrics.intervals import Interval
from qtool.metrics.metric import check_drop, default_drop
from qtool.metrics.named_metrics import GateMetric, Measured, Samples

_SHUFFLES = 19  # of the labels
_GAIN = 2.0  # default limits by which no rounding makes a file better
_BETTER = 3.0  # standard deviations of these: by chance in 4 of 1,000 cases (Student)


def in_own_order(
    samples: Samples, labels: Array | None, positions: Array | None
) -> tuple[Samples, Array | None]:
    """Return samples in their own order, in which two of a pair are neighbours, and labels."""
    if positions is None or len(positions) != samples.statistics.samples:
        return samples, labels
    order = np.argsort(positions)
    if labels is not None and len(labels) == len(order):
        labels = labels[order]
    return samples.chosen(order), labels


def metric_check(
    metric: GateMetric, number: int, samples: Samples, labels: Array | None, options: GateOptions
) -> tuple[GateCheck, GateMetricResult | None]:
    """Return what the metric says.

    Raises:
        DataError: it cannot be measured on these outputs and labels.
    """
    samples, known = _finite(samples, labels)
    measured = metric.measure(samples, known, number)
    real, value = measured.values(np.arange(measured.samples))
    if known is not None and _is_by_chance(metric, number, samples, known, real):
        text = f"the float file has {_text(measured, real)}{_of(measured)} with these labels, "
        text += "no better than with shuffled ones; check their order and the preprocessing"
        return GateCheck(measured.name, Outcome.NOT_COMPARABLE, text), None
    check_drop(options.max_drop, measured.percent)
    usual = default_drop(measured.percent or (measured.higher_is_better and abs(real) <= 1), real)
    limit = usual if options.max_drop is None else options.max_drop
    for each, file in ((real, "float"), (value, "quantized")):
        if not math.isfinite(each):
            text = f"{measured.name} of the {file} file is {each:g}"
            return GateCheck(measured.name, Outcome.NOT_COMPARABLE, text), None
    drop = _drop(measured, options.confidence, metric.groups)
    if drop is None:
        text = f"{_text(measured, real)} -> {_text(measured, value)}{_of(measured).rstrip(',')}; "
        text += f"{quantity(measured.samples, 'sample')} are too few for an interval"
        return GateCheck(measured.name, Outcome.INCONCLUSIVE, text), None
    low, high = drop.ends(1.0)
    needed = None if drop.decides(limit) else drop.samples_needed(limit)
    interval = Interval(drop.value, low, high)
    result = GateMetricResult(
        measured.name, real, value, interval, limit, options.confidence, needed, measured.output
    )
    unit, scale = (" points", 100) if measured.percent else ("", 1)
    text = f"{_text(measured, real)} -> {_text(measured, value)}{_of(measured)} on "
    text += f"{quantity(measured.samples, 'sample')}, drop {scale * drop.value:.3g} "
    text += f"({scale * low:.3g} to {scale * high:.3g}){unit}, limit {scale * limit:.3g}"
    text += "" if measured.hits is None else _one_answer(samples)
    outcome = Outcome.REGRESSION if low > limit else Outcome.ACCEPTED
    if high < -(most := max(limit, _GAIN * usual)) and not options.other_model:
        outcome = Outcome.NOT_COMPARABLE
        text += (
            f"; rounding makes no file better by more than {scale * most:.3g}: it was probably "
            "made from another float file; give that one, or accept other weights with "
            f"{argument('--other-model')}"
        )
    elif not drop.decides(limit):
        outcome = Outcome.INCONCLUSIVE
        text += (
            f"; about {needed:,} samples would decide"
            if needed
            else "; the drop is so near to the limit that no number of samples decides"
        )
    return GateCheck(measured.name, outcome, text), result


def _one_answer(samples: Samples) -> str:
    """Return a clause if the quantized file alone answers one class on all samples."""
    known = samples.statistics
    if not known.classes.shape[2] or known.samples < FEW:
        return ""
    real, other = known.classes[:, :, 0]
    if (other != other[0]).any() or (real == real[0]).all():
        return ""
    rare = quantity(int((real != other).sum()), "sample")
    return f"; it answers class {other[0]} on all of them, the float file another on {rare}"


def _text(measured: Measured, value: float) -> str:
    return percent(value) if measured.percent else f"{value:.4g}"


def _of(measured: Measured) -> str:
    return f" of {measured.output}," if measured.output else ""


def _finite(samples: Samples, labels: Array | None) -> tuple[Samples, Array | None]:
    """Return the samples on which the float file has finite outputs.

    Raises:
        DataError: it has others, and labels are not per sample.
    """
    finite = samples.statistics.not_finite[0] == 0
    if finite.all():
        return samples, labels
    if labels is not None and len(labels) != len(finite):
        raise DataError(
            "the float file outputs NaN or Inf on some samples", DataEdit("leave these out")
        )
    index = np.flatnonzero(finite)
    return samples.chosen(index), None if labels is None else labels[index]


def _drop(measured: Measured, confidence: float, groups: int) -> Drop | None:
    if measured.hits is not None:
        return share_drop(*measured.hits, confidence)
    sign = 1.0 if measured.higher_is_better else -1.0
    return jackknife_drop(measured.values, measured.samples, confidence, sign, groups)


def _is_by_chance(
    metric: GateMetric, number: int, samples: Samples, labels: Array, real: float
) -> bool:
    """Return whether the float file is no better than with shuffled labels."""
    if len(labels) < FEW or (labels == labels[:1]).all():
        return False
    generator = np.random.default_rng(0)
    shuffled = [
        metric.measure(samples, generator.permutation(labels), number) for _ in range(_SHUFFLES)
    ]
    values = [each.values(np.arange(each.samples))[0] for each in shuffled]
    sign = 1.0 if shuffled[0].higher_is_better else -1.0
    return bool(sign * (real - np.mean(values)) <= _BETTER * np.std(values))
