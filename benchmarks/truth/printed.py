"""What `qtool quantize --json` printed, of any version: fields that are not there are None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["printed"]

Document = Mapping[str, Any]


def printed(document: Document, output: str = "") -> dict[str, Any]:
    """The numbers of one conversion.

    `fidelity.estimate` is read where the version has it, with the output that it names (the worst
    one where it names none). Otherwise SQNR is that of held-out samples, or of calibration samples
    where none were held out, of the worst output: `output` and `place` say which.

    Args:
        output: of a model whose other outputs are no results (a KV cache): the one that counts.
    """
    fidelity: Document = document.get("fidelity") or {}
    estimate: Document = fidelity.get("estimate") or {}
    coverage: Document = document.get("coverage") or {}
    speed: Document = document.get("speed") or {}
    timing: Document = next(iter(speed.get("timings") or ()), {})
    agreement = _agreement(estimate.get("agreement", fidelity.get("agreement")))
    return {
        **_sqnr(document, fidelity, estimate, output),
        **agreement,
        "few_samples": _few_samples(document, fidelity, estimate),
        "speed": speed.get("ratio"),
        "speed_batch": timing.get("batch"),
        "size_bytes": document.get("size_bytes"),
        "float_size_bytes": document.get("float_size_bytes"),
        "integer_share": coverage.get("integer_mac_share"),
        "perplexity": _perplexity(document.get("metrics") or ()),
        "notes": list(document.get("notes") or ()),
        "warning": fidelity.get("warning"),
    }


def _sqnr(
    document: Document, fidelity: Document, estimate: Document, output: str
) -> dict[str, Any]:
    if estimate:
        return {
            "median_db": estimate.get("median_db"),
            "interval_db": estimate.get("interval_db"),
            "pooled_db": estimate.get("pooled_db"),
            "worst_db": estimate.get("worst_db"),
            "samples": estimate.get("samples"),
            "batch": estimate.get("batch"),
            "output": estimate.get("output") or "",
            "place": None,
        }
    held_out = fidelity.get("holdout") or ()
    rows = held_out or fidelity.get("outputs") or ()
    decibels = {r["output"]: r["sqnr_db"] for r in rows} or document.get("sqnr") or {}
    numbers = [
        (db, place, name)
        for place, (name, db) in enumerate(decibels.items())
        if db is not None and output in ("", name)
    ]
    worst, place, name = min(numbers, default=(None, None, ""))
    samples = fidelity.get("holdout_samples") if held_out else fidelity.get("samples")
    return {
        "median_db": None,
        "interval_db": None,
        "pooled_db": worst,
        "worst_db": None,
        "samples": document.get("samples") if samples is None else samples,
        "batch": None,
        "output": name,
        "place": place,
    }


def _few_samples(document: Document, fidelity: Document, estimate: Document) -> bool:
    """Whether the output says that few samples decide the pooled dB."""
    said = [*(document.get("notes") or ()), fidelity.get("warning") or ""]
    return bool(estimate.get("few_samples")) or any("few samples carry" in s for s in said)


def _agreement(value: Any) -> dict[str, Any]:
    """A number, or a mapping with an interval."""
    if not isinstance(value, Mapping):
        return {"agreement": value, "agreement_interval": None}
    share = next((value[k] for k in ("share", "value", "mean", "median") if k in value), None)
    return {"agreement": share, "agreement_interval": value.get("interval")}


def _perplexity(metrics: Sequence[Document]) -> float | None:
    """Of the file, which is the last of a metric's values."""
    for metric in metrics:
        if "perplexity" in str(metric.get("name", "")).lower():
            values = metric.get("values") or ()
            return float(values[-1]) if values else None
    return None
