"""Run a float file and a quantized one on the same samples, and decide on the second."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.formats import (
    is_model,
    open_file,
    open_like,
    open_model,
    runtime_title,
    warnings_on_files,
)
from qtool.core.argument_names import argument
from qtool.core.errors import DataError, FileError, VerificationError, missing
from qtool.core.log import log_note, log_warning
from qtool.core.number_texts import times
from qtool.core.output_evidence import Evidence
from qtool.core.remedies import DataEdit
from qtool.core.types import Array, Progress
from qtool.core.versions import version_of
from qtool.evaluation.feeder import Arrays
from qtool.evaluation.gate.data_checks import ConstantOutput, DataChecks
from qtool.evaluation.gate.inputs import (
    BatchSizeError,
    Digest,
    digest_of,
    fitting_batches,
    read_labels,
)
from qtool.evaluation.gate.metric_check import in_own_order, metric_check
from qtool.evaluation.gate.result import GateCheck, GateResult, GateRun, Outcome
from qtool.evaluation.labelled_data import LabelledData
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.evaluation.machine import this_machine
from qtool.evaluation.measure.output_pass import (
    OutputTypeError,
    Reference,
    Yardsticks,
    measure_arrays,
)
from qtool.evaluation.model_inputs import check_same_inputs
from qtool.evaluation.options import GateOptions
from qtool.evaluation.same_weights import check_same_files
from qtool.metrics.compared_batches import is_cache
from qtool.metrics.labels import classes_in
from qtool.metrics.metric import check_drop
from qtool.metrics.named_metrics import GateMetric, Samples, find_metric, user_metric
from qtool.metrics.output_agreement import agreements_text
from qtool.metrics.sample_statistics import check_finite
from qtool.metrics.vector_output import VectorOutput


def run_gate(
    file: Path,
    against: Path,
    data: LabelledData,
    options: GateOptions,
    pooling: str,
    progress: Progress,
) -> GateResult:
    """Decide whether a quantized file may take the place of a float file.

    Args:
        file: the quantized file.
        against: the float file.
        data: batches, with what the metric needs as labels. Where the samples have another order of
            their own (`positions`), the metric sees that.
        options: what is asked for, with a metric.
        pooling: see `VectorOutput`.
        progress: wraps the iterable of batches.

    Raises:
        DataError: no data, or data that does not fit the float file.
        FileError: there is no such file.
        OptionError: an unknown metric, or a limit that every file meets.
        VerificationError: the float file does not run.
    """
    result, labels = GateResult(str(file), str(against), ()), data.labels
    name, metric = _metric_of(options)
    check_drop(options.max_drop, metric[0].percent)
    try:
        used = read_labels(name, metric[0], labels)
    except DataError as error:
        return _with(result, GateCheck("labels", Outcome.NOT_COMPARABLE, str(error)))
    for check in _file_checks(file, against, options):
        result = _with(result, check)
        if check.outcome is not Outcome.ACCEPTED:
            return result
    reference = Reference(against, options.runtime)
    stream = data.arrays(reference.session, progress)
    first = next(stream, None)
    if first is None:
        raise DataError("the data is empty", DataEdit("give at least one batch"))
    files = (against, file)
    vectors = VectorOutput.of([o.name for o in reference.session.outputs], pooling)
    known = FilePass(metric[0], reference, file, options.runtime, vectors)
    samples = _run(known, files, first, stream)
    if isinstance(samples, GateCheck):
        return _with(result, samples)
    if classes_in(labels):  # evidence for classes, whether the metric uses them or not
        samples = replace(samples, statistics=samples.statistics.with_classes())
    result = replace(result, samples=samples.statistics.samples)
    checks = known.checks(samples)
    result = _with(result, *checks)
    if all(check.outcome is Outcome.ACCEPTED for check in checks):
        positions = getattr(data.batches, "positions", None)
        result = _with_metric(result, metric, samples, used, positions, options)
    if options.min_speedup is not None:
        check, ratio = _speed_check(files, first, options)
        result = replace(_with(result, check), speedup=ratio)
    return replace(result, run=known.record(used))


def _metric_of(options: GateOptions) -> tuple[str, tuple[GateMetric, int]]:
    """Return the name of a metric, and the metric with the number in its name."""
    metric = options.metric
    if isinstance(metric, str):
        return metric, find_metric(metric)
    assert metric is not None
    name = getattr(metric, "__name__", "metric")
    return name, (user_metric(metric, name, not options.lower_is_better), 0)


def _run(
    known: FilePass, files: Sequence[Path], first: Arrays, others: Iterator[Arrays]
) -> Samples | GateCheck:
    """Return what the metric needs of all samples, or why the files do not run on them."""
    try:
        return known.run(files, itertools.chain([first], others))
    except VerificationError as error:
        known.reference.session.run(first)  # raises the error of the float file
        return GateCheck("file", Outcome.REGRESSION, str(error))
    except BatchSizeError as error:
        return GateCheck("inputs", Outcome.NOT_COMPARABLE, str(error))
    except OutputTypeError as error:
        return GateCheck("outputs", Outcome.NOT_COMPARABLE, str(error))


def _with_metric(
    result: GateResult,
    metric: tuple[GateMetric, int],
    samples: Samples,
    labels: Array | None,
    positions: Array | None,
    options: GateOptions,
) -> GateResult:
    """Return the result with what the metric says, or why labels do not fit."""
    try:
        check, measured = metric_check(*metric, *in_own_order(samples, labels, positions), options)
    except DataError as error:
        return _with(result, GateCheck("labels", Outcome.NOT_COMPARABLE, str(error)))
    return replace(_with(result, check), metric=measured)


def _with(result: GateResult, *checks: GateCheck) -> GateResult:
    return replace(result, checks=(*result.checks, *checks))


def _file_checks(file: Path, against: Path, options: GateOptions) -> Iterator[GateCheck]:
    """Yield what both files say before they run on data; the first that is not accepted ends it."""
    if quantized := open_file(against).is_quantized:
        log_note(f"{against.name} is quantized itself; the drop is not the one from a float file")
    open_model(against, runtime=options.runtime)
    if not file.is_file():
        raise missing(file, FileError)
    try:
        opened = open_file(file)
        for sentence in warnings_on_files(opened, against):
            log_warning(sentence)
        open_model(file, runtime=options.runtime)
        test = opened.check_self_test()
    except (FileError, VerificationError) as error:
        if not is_model(file):
            raise
        yield GateCheck("file", Outcome.REGRESSION, f"it cannot be run: {error}")
        return
    if not opened.is_quantized:
        text = f"{file.name} is not quantized"
        if quantized:
            text += f", and {against.name} is: give them the other way round"
        yield GateCheck("file", Outcome.NOT_COMPARABLE if quantized else Outcome.ACCEPTED, text)
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


def _speed_check(
    files: Sequence[Path], first: Arrays, options: GateOptions
) -> tuple[GateCheck, Ratio]:
    least = options.min_speedup
    assert least is not None
    *_, phase = phases(files, first)
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


class FilePass:
    """One pass of both files over the data, and what it sees on the way.

    Attributes:
        reference: the float file.
    """

    def __init__(
        self,
        metric: GateMetric,
        reference: Reference,
        file: Path,
        runtime: str,
        vectors: VectorOutput,
    ) -> None:
        self._begun, self._clock = datetime.now(timezone.utc), time.monotonic()
        self.reference = reference
        self.digest = Digest()
        self._opened, self._runtime = open_file(file), runtime
        self._vectors, self._is_pooled = vectors, False
        names = [i.name for i in reference.session.inputs]
        self._data = DataChecks(names, self._opened.input_ranges())
        self._metric = metric
        self._kept: list[tuple[Any, Any]] = []
        self._constant = ConstantOutput()
        others = [o.name for o in reference.session.outputs[1:] if not is_cache(o.name)]
        self._others = Yardsticks() if others and metric.labels == "" else None

    def record(self, labels: Any) -> GateRun:
        """Return what was run where, and how long it took since the pass was made."""
        runtime = runtime_title(self._runtime, self._opened.path.suffix)
        return GateRun(
            self.digest.hexdigest(),
            digest_of(labels),
            this_machine().cpu,
            runtime or f"ONNX Runtime {version_of('onnxruntime')}",
            self._begun.isoformat(timespec="seconds"),
            time.monotonic() - self._clock,
        )

    def run(self, files: Sequence[Path], data: Iterable[Arrays]) -> Samples:
        """Return what the metric needs of all samples.

        Raises:
            BatchSizeError: FILE has a fixed number of samples, and a batch another one.
        """
        if not self._opened.takes_one_sample:
            like = self.reference.session
            inputs = open_like(like, files[1], runtime=self._runtime).inputs
            data = fitting_batches(data, inputs, files[1].name)
        measured = measure_arrays(
            self.reference, files[1:], data, watch=self._watch, yardsticks=self._others
        )
        real, other = (_joined(each) for each in zip(*self._kept, strict=True))
        has_mask = self.reference.reader.padding.mask is not None
        reader = self.reference.reader
        evidence = reader.evidence.get(reader.names[0], Evidence())
        return Samples(measured, (real, other), self._vectors, self._is_pooled, has_mask, evidence)

    def _watch(self, arrays: Arrays, outputs: Sequence[Arrays]) -> None:
        self._data.add(arrays)
        self.digest.add(arrays)
        shapes = [[list(o.shape) for o in own] for own in outputs]
        if shapes[0] != shapes[1]:
            raise OutputTypeError(f"outputs {shapes[1]}, those of the float file {shapes[0]}")
        self._constant.add(outputs)
        if self._metric.labels == "":  # it compares both files, where rows may be a set
            _, outputs = self.reference.reader.compared(outputs)
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
            constant = self._constant.checks(self.reference.session.outputs[0].name, known.samples)
            return [*self._data.checks(), *constant, *self._other_outputs()]
        text = f"NaN or Inf on {broken} of {known.samples} samples, where the float file has none"
        return [GateCheck("outputs", Outcome.REGRESSION, text), *self._data.checks()]

    def _other_outputs(self) -> list[GateCheck]:
        """Return what the outputs behind the first agree in, which the metric does not judge."""
        if self._others is None:
            return []
        name = self.reference.session.outputs[0].name
        _, every = self._others.agreements().files
        others = [each for each in every if each.output != name]
        poor = [each for each in others if each.is_poor]
        text = agreements_text(poor or others, several=True)
        if poor:
            text += f"; a metric of what counts, as {argument('--metric')}, judges without them"
        outcome = Outcome.REGRESSION if poor else Outcome.ACCEPTED
        return [GateCheck("other outputs", outcome, text)] if others else []


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
