"""What `qtool quantize --json` printed: fields that are not there are None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["printed"]

Document = Mapping[str, Any]


def printed(document: Document, output: str = "") -> dict[str, Any]:
    """The numbers of one conversion.

    `fidelity.estimate` is read where there is one, of the output with the lowest median, which is
    the one that is shown. Otherwise SQNR is that of calibration samples, of the worst output:
    `output` and `place` say which.

    Args:
        output: of a model whose other outputs are no results (a KV cache): the one that counts.
    """
    fidelity: Document = document.get("fidelity") or {}
    estimate: Document = fidelity.get("estimate") or document.get("estimate") or {}
    coverage: Document = document.get("coverage") or {}
    speed: Document = document.get("speed") or {}
    timing: Document = next(iter(speed.get("timings") or ()), {})
    return {
        **_sqnr(document, fidelity, estimate, output),
        "agreements": _agreements(estimate),
        "few_samples": _few_samples(document, fidelity, estimate),
        "speed": speed.get("ratio"),
        "speed_runtime": speed.get("runtime") or "",
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
        place, row = _row_of(estimate, output)
        return {
            "median_db": row.get("median_db"),
            "interval_db": row.get("interval_db"),
            "pooled_db": row.get("pooled_db"),
            "worst_db": row.get("worst_db"),
            "samples": estimate.get("samples"),
            "kind": estimate.get("kind") or "estimate",
            "batch": estimate.get("batch"),
            "output": row.get("output") or "",
            "place": place,
        }
    rows = fidelity.get("outputs") or ()
    decibels = {r["output"]: r["sqnr_db"] for r in rows} or document.get("sqnr") or {}
    numbers = [
        (db, place, name)
        for place, (name, db) in enumerate(decibels.items())
        if db is not None and output in ("", name)
    ]
    worst, place, name = min(numbers, default=(None, None, ""))
    samples = fidelity.get("samples")
    return {
        "median_db": None,
        "interval_db": None,
        "pooled_db": worst,
        "worst_db": None,
        "samples": document.get("samples") if samples is None else samples,
        "kind": "calibration",
        "batch": None,
        "output": name,
        "place": place,
    }


def _few_samples(document: Document, fidelity: Document, estimate: Document) -> bool:
    """Whether the output says that few samples decide the pooled dB."""
    cautions = (fidelity.get("warning"), estimate.get("caution"))
    said = [*(document.get("notes") or ()), *filter(None, cautions)]
    phrases = ("few samples decide", "few samples may decide", "calibration has not settled")
    return bool(estimate.get("costly")) or any(p in s for s in said for p in phrases)


def _row_of(estimate: Document, output: str) -> tuple[int | None, Document]:
    """The figures of the output that counts, or of the one that is shown: the lowest median."""
    rows = list(estimate.get("outputs") or ())
    places = [i for i, r in enumerate(rows) if output in ("", r["output"])]
    if not places:
        return None, estimate
    place = min(places, key=lambda i: _or_infinite(rows[i]["median_db"]))
    row = rows[place]
    return place, {**row, "interval_db": [row["low_db"], row["high_db"]]}


def _or_infinite(decibels: float | None) -> float:
    return float("inf") if decibels is None else decibels


def _agreements(estimate: Document) -> list[dict[str, Any]]:
    """Of each output: its place, kind, value, number of samples, and interval if there is one."""
    names = [r["output"] for r in estimate.get("outputs") or ()]
    return [
        {
            "place": names.index(a["output"]) if a["output"] in names else 0,
            "kind": a["kind"],
            "value": a["value"],
            "threshold": a.get("threshold") or 0.0,
            "samples": estimate.get("samples"),
            "interval": a.get("interval"),
        }
        for a in estimate.get("agreements") or ()
    ]


def _perplexity(metrics: Sequence[Document]) -> float | None:
    """Of the file, which is the last of a metric's values."""
    for metric in metrics:
        if "perplexity" in str(metric.get("name", "")).lower():
            values = metric.get("values") or ()
            return float(values[-1]) if values else None
    return None
