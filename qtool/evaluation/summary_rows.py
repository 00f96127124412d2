"""Rows of a summary: figures of a quantized file next to those of its float model.

`quantize`, `evaluate` and `report` print the same figures in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qtool.core import formats
from qtool.evaluation.latency.interleaved_timing import FLOAT, Row
from qtool.metrics.output_agreement import OutputAgreement, agreements_text
from qtool.metrics.sample_statistics import AGREEMENTS
from qtool.verification.coverage import unknown_work
from qtool.verification.fidelity import OutputSqnr, outputs_text

if TYPE_CHECKING:
    from qtool.evaluation.measure.accuracy import Accuracy
    from qtool.metrics.metric import Metric


def size_row(size: int, reference: int, name: str = FLOAT) -> Row:
    """Return the size of a file, next to that of the reference.

    Args:
        size: size of the file in bytes.
        reference: size of the reference in bytes.
        name: name of the reference.
    """
    part = f"{formats.share(size / reference)} of"
    if size > reference:
        part = f"{size / reference:.2f} times"
    whole = "the float file" if name == FLOAT else name
    same = f"that of {whole}"
    whole = f"{part} {whole}'s {formats.size(reference)}"
    return "size", f"{formats.size(size)}, {same if size == reference else whole}"


_GROWN = 1.01


def growth_warning(size: int, reference: int, name: str = FLOAT) -> list[str]:
    """Return a warning if a file is larger than the reference, by a percent; see `size_row`.

    A float model that is restored from the file itself keeps the codes of layers that compute in
    float, so that it can be as large.
    """
    if size <= _GROWN * reference:
        return []
    return [f"warning: the file grew: {size_row(size, reference, name)[1]}"]


def sqnr_row(sqnr_db: float | None, samples: int, outputs: Sequence[OutputSqnr] = ()) -> Row:
    """Return the SQNR of the outputs.

    Args:
        sqnr_db: SQNR of all outputs together.
        samples: number of samples.
        outputs: SQNR of each of several outputs, which are shown then.
    """
    text = "no error" if sqnr_db is None else f"{formats.db(sqnr_db)} dB"
    if outputs:
        text = outputs_text(outputs)
    return "SQNR", f"{text} ({formats.quantity(samples, 'sample')})"


def metric_rows(metrics: Sequence[Metric], model: int = 1, name: str = FLOAT) -> Iterator[Row]:
    """Yield a row per metric: its value, that of the reference, and the interval of the change."""
    for metric in metrics:
        reference, own = metric.text(metric.values[0]), metric.text(metric.values[model])
        ends = metric.change_interval(model)
        ends = ends and f"; 95 % interval {ends}"
        yield metric.name, f"{own}, {name} {reference} ({metric.change(metric.drops[model])}{ends})"


def agreement_row(
    share: float | None, scores: str, samples: int, tokens: int, kl: float | None = None
) -> Row | None:
    """Return on how many samples or tokens a model predicts the reference's class; None without.

    Args:
        share: share of the samples or tokens, 0 to 1.
        scores, tokens: see `Accuracy`.
        samples: number of samples.
        kl: see `ModelAccuracy`.
    """
    if share is None:
        return None
    what = AGREEMENTS[scores].removesuffix(" agreement").replace("next-", "next ")
    whole, unit = (tokens, "tokens") if tokens else (samples, "samples")
    text = f"same {what} on {formats.part(round(share * whole), whole)} {unit}"
    return "agreement", text if kl is None else f"{text}, KL divergence {kl:.2g}"


def yardstick_rows(yardsticks: Sequence[OutputAgreement]) -> list[Row]:
    """Return what outputs that are no scores of classes or tokens agree in."""
    text = agreements_text(yardsticks, len(yardsticks) > 1)
    return [("agreement", text)] if text else []


def accuracy_rows(accuracy: Accuracy, model: int = 1, name: str = FLOAT) -> list[Row]:
    """Return metrics, then agreement with the reference; of a file that was measured alone, its
    metrics."""
    if len(accuracy.models) == 1:
        return [(metric.name, metric.text(metric.values[0])) for metric in accuracy.metrics]
    outcome = accuracy.models[model].agreement
    share = None if outcome is None else outcome.value
    agreement = agreement_row(
        share, accuracy.scores, accuracy.samples, accuracy.tokens, accuracy.models[model].kl
    )
    rows = list(metric_rows(accuracy.metrics, model, name))
    rows += [] if agreement is None else [agreement]
    return rows + yardstick_rows(accuracy.models[model].yardsticks)


def integer_row(
    share: float,
    weight_share: float,
    unknown: int = 0,
    macs: int | None = None,
    operators: tuple[int, int] | None = None,
) -> Row:
    """Return the share of the MACs in integer kernels, or with integer weights if that is all.

    Args:
        share: part of the MACs in integer kernels, 0 to 1.
        weight_share: part of the MACs with integer weights only, 0 to 1.
        unknown: number of operators whose work is not known.
        macs: MACs of one sample.
        operators: those in integer kernels, and all.
    """
    weights = f"{formats.share(weight_share)} of the MACs"
    if weight_share and not share:
        return "weights", f"integer in {weights}{unknown_work(unknown)}; activations stay float"
    work = "the" if macs is None else formats.count(macs)
    count = "" if operators is None else f", {operators[0]} of {operators[1]} operators"
    text = f"{formats.share(share)} of {work} MACs{count}{unknown_work(unknown)}"
    return "integer", f"{text}; {weights} with integer weights only" if weight_share else text
