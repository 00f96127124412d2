"""Run a float file and a quantized one on the same samples, and decide on the second."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.open_files import open_model, open_readable
from qtool.core.argument_names import argument
from qtool.core.errors import DataError, FileError, OptionError, VerificationError
from qtool.core.formats import percent, quantity, times
from qtool.core.log import log_note
from qtool.core.missing_files import missing
from qtool.core.option_names import NATIVE
from qtool.core.remedies import DataEdit
from qtool.core.sentence_pooling import MEAN
from qtool.core.types import Array
from qtool.evaluation.gate.data_checks import FEW, DataChecks
from qtool.evaluation.gate.metrics import AGREEMENT, GateMetric, Measured, Samples, find_metric
from qtool.evaluation.gate.result import GateCheck, GateMetricResult, GateResult, Outcome
from qtool.evaluation.gate.vectors import VectorOutput
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.evaluation.measure.output_pass import Arrays, Reference, measure_arrays
from qtool.evaluation.model_inputs import check_same_inputs, resized
from qtool.evaluation.same_weights import check_same_files
from qtool.metrics.drop import Drop, jackknife_drop, share_drop
from qtool.metrics.interval import Interval
from qtool.metrics.metric import check_drop, default_drop
from qtool.metrics.sample_statistics import check_finite

CONFIDENCE = 0.95
_SHUFFLES = 19  # of the labels
_GAIN = 2.0  # default limits by which no rounding makes a file better
_BETTER = 3.0  # standard deviations of these: by chance in 4 of 1,000 cases (Student)


@dataclass(frozen=True)
class GateOptions:
    """What a gate asks for.

    Attributes:
        metric: a name of `METRICS`, or the metric of a user's function.
        max_drop: the largest accepted drop; None: see `default_drop`.
        min_speedup: the least float latency / quantized latency; None: no latency is measured.
        confidence: see `GateMetricResult`.
        other_model: accept a float file with other weights.
        runtime, threads, seconds: see `evaluate_arrays`.
        pooling: see `VectorOutput`.
    """

    metric: str | GateMetric = AGREEMENT
    max_drop: float | None = None
    min_speedup: float | None = None
    confidence: float = CONFIDENCE
    other_model: bool = False
    runtime: str = NATIVE
    threads: int = 1
    seconds: float = 2.0
    pooling: str = MEAN


def run_gate(
    file: Path,
    against: Path,
    data: Iterable[Arrays],
    labels: Any,
    options: GateOptions,
    positions: Array | None = None,
) -> GateResult:
    """Decide whether a quantized file may take the place of a float file.

    Args:
        file: the quantized file.
        against: the float file.
        data: batches, arrays in the order of the inputs of the float file.
        labels: what the metric needs; None without.
        options: what is asked for.
        positions: positions of the samples where their own order is another one, [samples]; the
            metric sees that order.

    Raises:
        DataError: no data, or data that does not fit the float file.
        FileError: there is no such file.
        OptionError: an unknown metric, or a limit that every file meets.
        VerificationError: the float file does not run.
    """
    result = GateResult(str(file), str(against), ())
    metric = find_metric(options.metric) if isinstance(options.metric, str) else (options.metric, 0)
    _check_labels(options.metric, metric[0], labels)
    for check in _file_checks(file, against, options):
        result = _with(result, check)
        if check.outcome is not Outcome.ACCEPTED:
            return result
    stream = iter(data)
    first = next(stream, None)
    if first is None:
        raise DataError("the data is empty", DataEdit("give at least one batch"))
    files = (against, file)
    ranges = open_readable(file).input_ranges()
    known = _Pass(metric[0], Reference(against, options.runtime), ranges, options.pooling)
    try:
        samples = known.run(files, itertools.chain([first], stream), options.runtime)
    except VerificationError as error:
        known.reference.session.run(first)  # raises the error of the float file
        return _with(result, GateCheck("file", Outcome.REGRESSION, str(error)))
    except _OtherOutputsError as error:
        return _with(result, GateCheck("outputs", Outcome.NOT_COMPARABLE, str(error)))
    result = replace(result, samples=samples.statistics.samples)
    checks = known.checks(samples)
    result = _with(result, *checks)
    if all(check.outcome is Outcome.ACCEPTED for check in checks):
        try:
            used = None if metric[0].labels == "" else labels
            sorted_ = _in_own_order(samples, used, positions)
            check, measured = _metric_check(*metric, *sorted_, options)
            result = replace(_with(result, check), metric=measured)
        except DataError as error:
            result = _with(result, GateCheck("labels", Outcome.NOT_COMPARABLE, str(error)))
    if options.min_speedup is None:
        return result
    check, ratio = _speed_check(files, first, options)
    return replace(_with(result, check), speedup=ratio)


def _with(result: GateResult, *checks: GateCheck) -> GateResult:
    return replace(result, checks=(*result.checks, *checks))


def _file_checks(file: Path, against: Path, options: GateOptions) -> Iterator[GateCheck]:
    """Yield what both files say before they run on data; the first that is not accepted ends it."""
    open_readable(against)
    open_model(against, runtime=options.runtime)
    if not file.is_file():
        raise missing(file, FileError)
    try:
        opened = open_readable(file)
        open_model(file, runtime=options.runtime)
        test = opened.check_self_test()
    except (FileError, VerificationError) as error:
        yield GateCheck("file", Outcome.REGRESSION, f"it cannot be run: {error}")
        return
    if test.present or test.unmodified is False:
        outcome = Outcome.ACCEPTED if test.passed else Outcome.REGRESSION
        yield GateCheck("file", outcome, "; ".join(text for _, text in test.rows()))
    try:
        check_same_inputs((against, file))
    except DataError as error:
        yield GateCheck("inputs", Outcome.NOT_COMPARABLE, str(error))
        return
    try:
        check_same_files([against, file], options.other_model)
    except VerificationError as error:
        yield GateCheck("weights", Outcome.NOT_COMPARABLE, str(error))


class _OtherOutputsError(Exception):
    """Outputs of other shapes than those of the float file."""


class _Pass:
    """One pass of both files over the data, and what it sees on the way.

    Attributes:
        reference: the float file.
    """

    def __init__(
        self,
        metric: GateMetric,
        reference: Reference,
        ranges: Mapping[str, tuple[float, float]],
        pooling: str,
    ) -> None:
        self.reference = reference
        self._vectors = VectorOutput.of([o.name for o in reference.session.outputs], pooling)
        self._is_pooled = False
        self._data = DataChecks([i.name for i in reference.session.inputs], ranges)
        self._metric = metric
        self._kept: list[tuple[Any, Any]] = []
        self._fits = True

    def run(self, files: Sequence[Path], data: Iterable[Arrays], runtime: str) -> Samples:
        """Return what the metric needs of all samples."""
        measured = measure_arrays(
            files, data, runtime=runtime, reference=self.reference, watch=self._watch
        )
        real, other = (_joined(each) for each in zip(*self._kept, strict=True))
        has_mask = self.reference.reader.padding.mask is not None
        return Samples(measured, (real, other), self._vectors, self._is_pooled, has_mask)

    def _watch(self, arrays: Arrays, outputs: Sequence[Arrays]) -> None:
        self._data.add(arrays)
        shapes = [[list(o.shape) for o in own] for own in outputs]
        if shapes[0] != shapes[1]:
            raise _OtherOutputsError(f"outputs {shapes[1]}, those of the float file {shapes[0]}")
        tokens = self.reference.reader.scores_tokens
        keep = self._metric.keep_of_tokens if tokens else self._metric.keep
        self._is_pooled = outputs[0][self._vectors.index].ndim == 3
        self._kept.append((keep(outputs[0], self._vectors), keep(outputs[1], self._vectors)))

    def checks(self, samples: Samples) -> list[GateCheck]:
        """Return what the samples themselves say of both files."""
        known = samples.statistics
        try:
            check_finite(known)
        except DataError as error:
            return [GateCheck("samples", Outcome.NOT_COMPARABLE, str(error))]
        broken = int(((known.not_finite[1] > 0) & (known.not_finite[0] == 0)).sum())
        if not broken:
            return self._data.checks()
        text = f"NaN or Inf on {broken} of {known.samples} samples, where the float file has none"
        return [GateCheck("outputs", Outcome.REGRESSION, text), *self._data.checks()]


def _joined(parts: Sequence[Any]) -> Any:
    """Return the arrays of all batches as one, shorter ones padded: floats with 0, others with
    -1."""
    if isinstance(parts[0], tuple):
        return tuple(_joined(each) for each in zip(*parts, strict=True))
    shape = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
    fill = 0 if parts[0].dtype.kind == "f" else -1
    padded = [
        np.pad(
            part,
            [(0, 0), *((0, n - m) for n, m in zip(shape, part.shape[1:], strict=True))],
            constant_values=fill,
        )
        for part in parts
    ]
    return np.concatenate(padded)


def _in_own_order(samples: Samples, labels: Any, positions: Array | None) -> tuple[Samples, Any]:
    """Return samples in their own order, in which two of a pair are neighbours, and labels."""
    if positions is None or len(positions) != samples.statistics.samples:
        return samples, labels
    order = np.argsort(positions)
    per_sample = labels is not None and len(labels) == len(order)
    return samples.chosen(order), np.asarray(labels)[order] if per_sample else labels


def _metric_check(
    metric: GateMetric, number: int, samples: Samples, labels: Any, options: GateOptions
) -> tuple[GateCheck, GateMetricResult | None]:
    """Return what the metric says.

    Raises:
        DataError: it cannot be measured on these outputs and labels.
    """
    known = None if labels is None else np.asarray(labels)
    samples, known = _finite(samples, known)
    measured = metric.measure(samples, known, number)
    real, value = measured.values(np.arange(measured.samples))
    if known is not None and _is_by_chance(metric, number, samples, known, real):
        text = f"the float file has {_text(measured, real)}{_of(measured)} with these labels, "
        text += "no better than with shuffled ones; check their order and the preprocessing"
        return GateCheck(measured.name, Outcome.NOT_COMPARABLE, text), None
    check_drop(options.max_drop, measured.percent)
    usual = default_drop(measured.percent or (measured.higher_is_better and abs(real) <= 1), real)
    limit = usual if options.max_drop is None else options.max_drop
    drop = _drop(measured, options.confidence, metric.groups)
    if drop is None:
        text = f"{_text(measured, real)} -> {_text(measured, value)}{_of(measured).rstrip(',')}; "
        text += f"{quantity(measured.samples, 'sample')} are too few for an interval"
        return GateCheck(measured.name, Outcome.INCONCLUSIVE, text), None
    low, high = drop.ends(1.0)
    needed = None if drop.decides(limit) else drop.samples_needed(limit)
    result = GateMetricResult(
        measured.name,
        real,
        value,
        Interval(drop.value, low, high),
        limit,
        options.confidence,
        needed,
        measured.output,
    )
    unit, scale = (" points", 100) if measured.percent else ("", 1)
    text = (
        f"{_text(measured, real)} -> {_text(measured, value)}{_of(measured)} on "
        f"{quantity(measured.samples, 'sample')}, drop {scale * drop.value:.3g} "
        f"({scale * low:.3g} to {scale * high:.3g}){unit}, limit {scale * limit:.3g}"
    )
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


def _text(measured: Measured, value: float) -> str:
    return percent(value) if measured.percent else f"{value:.4g}"


def _of(measured: Measured) -> str:
    return f" of {measured.output}," if measured.output else ""


def _check_labels(name: str | GateMetric, metric: GateMetric, labels: Any) -> None:
    """Check that there are labels where a metric needs them; note where it needs none.

    Raises:
        OptionError: there are none.
    """
    if metric.labels == "" and labels is not None:
        named = argument("--metric")
        log_note(f"{name} uses no labels; name a metric that does with {named}: top-1, mae, ...")
    if metric.labels and labels is None:
        raise OptionError(f"the metric needs {metric.labels} as {argument('--labels')}")


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


def _speed_check(
    files: Sequence[Path], first: Arrays, options: GateOptions
) -> tuple[GateCheck, Ratio]:
    least = options.min_speedup
    assert least is not None
    batch = resized(files, first)
    *_, phase = phases(files[0], batch)
    timing = phase.time(
        files, threads=options.threads, runtime=options.runtime, seconds=options.seconds
    )
    ratio = timing.ratios[1]
    text = (
        f"{times(ratio.median)} as fast as float ({ratio.low:.3g} to {ratio.high:.3g}; "
        f"{timing.what}), limit {least:g}"
    )
    if ratio.low >= least:
        return GateCheck("speed", Outcome.ACCEPTED, text), ratio
    if ratio.high < least:
        return GateCheck("speed", Outcome.REGRESSION, text), ratio
    longer = f"{text}; time it for longer with {argument('--seconds')}"
    return GateCheck("speed", Outcome.INCONCLUSIVE, longer), ratio
