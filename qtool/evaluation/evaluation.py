"""A float model and its quantized file on the same data: the short form of a report."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.backends.formats import quantization_warnings
from qtool.core.formats import milliseconds, share, size, table
from qtool.core.summary import Result, Summary
from qtool.evaluation.latency.interleaved_timing import FLOAT, Timing, speed_rows
from qtool.evaluation.measurement import Measurement
from qtool.evaluation.summary_rows import (
    agreement_row,
    growth_warning,
    integer_row,
    metric_rows,
    size_row,
    sqnr_row,
    yardstick_rows,
)
from qtool.metrics.metric import Metric
from qtool.metrics.output_agreement import OutputAgreement
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
        kl, yardsticks: see `ModelAccuracy`.
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
    yardsticks: tuple[OutputAgreement, ...] = ()

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
            *yardstick_rows(self.yardsticks),
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


def make_evaluation(measured: Measurement) -> Evaluation:
    """Return the figures of the first two files."""
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
        yardsticks=outcome.yardsticks,
    )
