"""Compare a float model with its int8 file in a few figures: the short form of a report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qtool.backends.open_files import runtime_title
from qtool.backends.table import open_file, quantization_warnings
from qtool.core.errors import DataError
from qtool.core.formats import milliseconds, share, size, table
from qtool.core.option_names import NATIVE
from qtool.core.records import from_json, to_json
from qtool.core.summary import Result, Summary
from qtool.distributed import current
from qtool.evaluation.baseline import Baseline, runtime_of
from qtool.evaluation.feeder import Feeder, measure_outputs
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.latency.interleaved_timing import FLOAT, Timing, speed_rows
from qtool.evaluation.measure.accuracy import summarize
from qtool.evaluation.measurement import Measurement
from qtool.evaluation.metrics import Metric
from qtool.evaluation.model_inputs import check_same_inputs, resized
from qtool.evaluation.sharded_accuracy import gather_labels, gather_statistics
from qtool.evaluation.summary_rows import (
    agreement_row,
    growth_warning,
    integer_row,
    metric_rows,
    size_row,
    sqnr_row,
)
from qtool.evaluation.user_metrics import user_metrics
from qtool.verification.fidelity import OutputSqnr


@dataclass(frozen=True)
class ModelFigures:
    """Figures of one of the two models.

    Attributes:
        accuracy: top-1, 0 to 1; None without labels.
        size_bytes: size of the file and its external data.
        latency_ms: median per batch, in milliseconds; of a decoder with a KV cache of a step.
        integer_mac_share: share of MACs in integer kernels, 0 to 1.
        integer_weight_mac_share: share of MACs with integer weights and float activations, 0 to 1.
        unknown_operators: number of operators whose work is not known; the shares leave them out.
    """

    accuracy: float | None
    size_bytes: int
    latency_ms: float
    integer_mac_share: float
    integer_weight_mac_share: float = 0.0
    unknown_operators: int = 0


@dataclass(frozen=True)
class Evaluation(Result):
    """A float model and its quantized file on the same data.

    Attributes:
        samples: number of samples.
        batch, threads: batch size and number of threads of the latency.
        float_, int8: figures of the two models.
        agreement: share of samples with the same top-1, or of tokens, see `scores`; None if the
            first output holds no scores.
        sqnr_db: signal to quantization noise ratio of all outputs, of the logits for a language
            model; None if they are equal.
        speedup: float latency / quantized latency, the median of paired runs.
        metrics: the user's first; top-1 and top-5 with labels; perplexity of a language model.
        scores: what agreement compares, see `Accuracy`.
        tokens: number of compared tokens; 0 without scores per token.
        timings: latency; of a decoder with a KV cache that of the prompt and that of a step. The
            last one is that of `latency_ms` and `speedup`.
        warnings: sentences on implausible results.
        runtime: where the files ran, with its version; "" for that of their format.
        baseline: the float file of the latency, see `Baseline.name`.
        timed_in: where the latency was measured, if it has to be said, see `runtime_of`.
        outputs: SQNR of each of several outputs, in the order of the model.
        kl: see `ModelAccuracy`.
    """

    samples: int
    batch: int
    threads: int
    float_: ModelFigures
    int8: ModelFigures
    agreement: float | None
    sqnr_db: float | None
    speedup: float
    metrics: tuple[Metric, ...] = ()
    scores: str = ""
    tokens: int = 0
    timings: tuple[Timing, ...] = ()
    warnings: tuple[str, ...] = ()
    runtime: str = ""
    baseline: str = FLOAT
    timed_in: str = ""
    outputs: tuple[OutputSqnr, ...] = ()
    kl: float | None = None

    def summary(self, title: str = "quantized") -> Summary:
        """Return the figures of the quantized model next to those of the float model."""
        own, samples = self.int8, self.samples
        timed_in = f", {self.timed_in}" if self.timed_in else ""
        speeds = speed_rows(self.timings, name=self.baseline)
        agreement = agreement_row(self.agreement, self.scores, samples, self.tokens, self.kl)
        rows = [
            size_row(own.size_bytes, self.float_.size_bytes),
            *((label, f"{text}{timed_in}") for label, text in speeds),
            sqnr_row(self.sqnr_db, samples, self.outputs),
            *metric_rows(self.metrics),
            *([] if agreement is None else [agreement]),
            integer_row(own.integer_mac_share, own.integer_weight_mac_share, own.unknown_operators),
        ]
        warnings = (
            *growth_warning(own.size_bytes, self.float_.size_bytes),
            *(f"warning: {warning}" for warning in self.warnings),
        )
        place = f" in {self.runtime}" if self.runtime else ""
        text = f"compared with its float model{place}"
        return Summary(title, text, tuple(rows), warnings=warnings)

    def details(self) -> str:
        """Return a table with a column per model."""
        sides = (self.float_, self.int8)
        rows = [(_metric_name(m), *map(m.text, m.values)) for m in self.metrics]
        rows.append(("size", *(size(s.size_bytes) for s in sides)))
        rows += [(t.what, *(milliseconds(s.median) for s in t.models)) for t in self.timings]
        rows.append(("MACs in integer kernels", *(share(s.integer_mac_share) for s in sides)))
        return table(("", "float", "quantized"), rows)


def _metric_name(metric: Metric) -> str:
    return f"accuracy ({metric.name})" if metric.name.startswith("top-") else metric.name


def evaluate_files(
    float_file: Path,
    int8_file: Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    function: Callable[[Any], Any] | None = None,
    where: str = "the evaluation function",
    lower_is_better: Sequence[str] = (),
    timed: Any = None,
    baseline: Baseline | None = None,
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    contexts: Sequence[int] | None = None,
) -> Evaluation:
    """Run both files in their runtimes on the same batches.

    Args:
        data: batches in the order of `labels`, read once; with several ranks, the share of this
            rank.
        labels: [samples] class numbers; the first output must then be [samples, classes] scores. Or
            numbers to predict, of the shape of the first output. With several ranks: those of the
            share, or of all data, where batch i belongs to rank i modulo the number of ranks.
        function, where, lower_is_better: the user's metrics, see `user_metrics`; rank 0 calls it.
        timed: a batch to time; by default the first.
        baseline: files of the float model, among them the one to time; by default `float_file` is
            timed.
        threads, seconds: conditions of each latency, which rank 0 measures.
        runtime: see `open_model`.
        contexts: see `measure_outputs`.

    Raises:
        DataError: no data, data that does not fit, or labels or a function that cannot be used.
        VerificationError: a file does not run.
    """
    files, ranks = (float_file, int8_file), current()
    check_same_inputs(files)
    stream = iter(data)
    first = next(stream, None)
    if first is None and not ranks.is_distributed:
        raise DataError("the evaluation data is empty; give at least one batch")
    own = None
    if first is not None:
        stream = itertools.chain([first], stream)
        own = measure_outputs(files, stream, runtime=runtime, contexts=contexts)
    share = None if labels is None else np.asarray(labels)
    numbers, measured = gather_labels(ranks, own, share), gather_statistics(ranks, own)
    if measured is None:
        return from_json(Evaluation, json.loads(ranks.broadcast(None)))
    user: tuple[Metric, ...] = ()
    if function is not None:
        user = user_metrics(function, files, where, lower_is_better, runtime)
    accuracy = summarize(measured, numbers, user)
    arrays = Feeder(float_file).arrays(first if timed is None else timed, 0)
    compared = (float_file if baseline is None else baseline.timed, int8_file)
    timings = tuple(
        phase.time(compared, threads=threads, runtime=runtime, seconds=seconds)
        for phase in phases(compared[0], resized(compared, arrays))
    )
    opened = (open_file(float_file), open_file(int8_file))
    coverages = (None, opened[1].coverage() if opened[1].is_quantized else None)
    source = 0 if baseline is None else baseline.source_bytes
    evaluation = replace(
        _evaluation(Measurement(opened, accuracy, timings, coverages, float_bytes=source)),
        runtime="" if runtime == NATIVE else runtime_title(runtime),
        baseline=FLOAT if baseline is None else baseline.name,
        timed_in=runtime_of(opened[1]) if runtime == NATIVE else "",
    )
    ranks.broadcast(json.dumps(to_json(evaluation)).encode())
    return evaluation


def _evaluation(measured: Measurement) -> Evaluation:
    accuracy, last = measured.accuracy, measured.timings[-1]
    top1 = next((m.values for m in accuracy.metrics if m.name == "top-1"), (None, None))
    sides = [
        ModelFigures(top1[i], measured.size(i), last.models[i].median, *measured.shares(i))
        for i in (0, 1)
    ]
    outcome = accuracy.models[1]
    return Evaluation(
        accuracy.samples,
        last.batch,
        last.threads,
        sides[0],
        sides[1],
        None if outcome.agreement is None else outcome.agreement.value,
        outcome.sqnr_db,
        last.ratios[1].median,
        accuracy.metrics,
        accuracy.scores,
        accuracy.tokens,
        measured.timings,
        (*quantization_warnings(measured.files[1]), *accuracy.warnings),
        outputs=outcome.outputs,
        kl=outcome.kl,
    )
