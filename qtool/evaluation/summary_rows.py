"""Rows of a summary: figures of a quantized file next to those of its float model.

`quantize`, `evaluate` and `report` print the same figures in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qtool.core import number_texts
from qtool.evaluation.latency.interleaved_timing import FLOAT, Row
from qtool.metrics.output_agreement import agreements_text
from qtool.verification.coverage import unknown_work
from qtool.verification.fidelity import OutputSqnr, outputs_text

if TYPE_CHECKING:
    from qtool.evaluation.measure.accuracy import Accuracy


def size_row(size: int, reference: int, name: str = FLOAT) -> Row:
    """Return the size of a file, next to that of the reference.

    Args:
        size: size of the file in bytes.
        reference: size of the reference in bytes.
        name: name of the reference.
    """
    part = f"{number_texts.share(size / reference)} of"
    if size > reference:
        part = f"{size / reference:.2f} times"
    whole = "the float file" if name == FLOAT else name
    same = f"that of {whole}"
    whole = f"{part} {whole}'s {number_texts.size(reference)}"
    return "size", f"{number_texts.size(size)}, {same if size == reference else whole}"


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
    text = "no error" if sqnr_db is None else f"{number_texts.db(sqnr_db)} dB"
    if outputs:
        text = outputs_text(outputs)
    return "SQNR", f"{text} ({number_texts.quantity(samples, 'sample')})"


def accuracy_rows(accuracy: Accuracy, model: int = 1, name: str = FLOAT) -> list[Row]:
    """Return metrics with the intervals of their changes, then agreement with the reference; of a
    file that was measured alone, its metrics."""
    if len(accuracy.models) == 1:
        return [(metric.name, metric.text(metric.values[0])) for metric in accuracy.metrics]
    rows, outcome = [], accuracy.models[model]
    for metric in accuracy.metrics:
        reference, own = metric.text(metric.values[0]), metric.text(metric.values[model])
        ends = metric.change_interval(model)
        ends = ends and f"; 95 % interval {ends}"
        change = f"{metric.change(metric.drops[model])}{ends}"
        rows.append((metric.name, f"{own}, {name} {reference} ({change})"))
    if outcome.agreement is not None:
        what = accuracy.agreement_name.removesuffix(" agreement").replace("next-", "next ")
        whole, unit = accuracy.samples, "samples"
        if accuracy.tokens:
            whole, unit = accuracy.tokens, "tokens"
        same = number_texts.part(round(outcome.agreement.value * whole), whole)
        kl = "" if outcome.kl is None else f", KL divergence {outcome.kl:.2g}"
        rows.append(("agreement", f"same {what} on {same} {unit}{kl}"))
    if text := agreements_text(outcome.yardsticks, len(outcome.outputs) > 1):
        rows.append(("agreement", text))
    return rows


def integer_row(
    share: float, weight_share: float, unknown: int, macs: int, operators: tuple[int, int]
) -> Row:
    """Return the share of the MACs in integer kernels, or with integer weights if that is all.

    Args:
        share: part of the MACs in integer kernels, 0 to 1.
        weight_share: part of the MACs with integer weights only, 0 to 1.
        unknown: number of operators whose work is not known.
        macs: MACs of one sample.
        operators: those in integer kernels, and all.
    """
    weights = f"{number_texts.share(weight_share)} of the MACs"
    if weight_share and not share:
        return "weights", f"integer in {weights}{unknown_work(unknown)}; activations stay float"
    count = f"{operators[0]} of {operators[1]} operators"
    work = f"{number_texts.share(share)} of {number_texts.count(macs)} MACs"
    text = f"{work}, {count}{unknown_work(unknown)}"
    return "integer", f"{text}; {weights} with integer weights only" if weight_share else text
