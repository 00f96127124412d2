"""A model file as a machine-learning bill of materials, CycloneDX 1.6.

Without date and serial number: equal files give equal documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qtool.core.errors import FileError
from qtool.core.number_texts import quantity
from qtool.core.remedies import OtherFile
from qtool.core.versions import DISTRIBUTION, own_version
from qtool.evaluation.measure.provenance import Provenance, provenance
from qtool.evaluation.report.report import Report
from qtool.metrics.intervals import Interval

_MODEL = "machine-learning-model"


def cyclonedx_document(file: str | Path, report: Report | None = None) -> dict[str, Any]:
    """Return the bill of materials of a model file of any tool, for `json.dumps`.

    Args:
        file: an ONNX or TFLite file.
        report: what was measured on it: the performance metrics of the model card.

    Raises:
        FileError: not a model file, or the report is of other files.
        VerificationError: the metadata that qtool wrote is damaged.
    """
    made = provenance(file)
    (name, digest), *weights = made.sha256.items()
    component: dict[str, Any] = {
        "type": _MODEL,
        "bom-ref": name,
        "name": name,
        "hashes": _hashes(digest),
        "components": [{"type": "data", "name": n, "hashes": _hashes(d)} for n, d in weights],
        "pedigree": _pedigree(made),
        "modelCard": _model_card(made, [] if report is None else _metrics(Path(file), report)),
        "properties": _properties(made),
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": DISTRIBUTION, "version": own_version()}
                ]
            },
            "component": {key: value for key, value in component.items() if value},
        },
    }


def _hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def _named(**values: str) -> list[dict[str, str]]:
    return [{"name": f"qtool:{name}", "value": value} for name, value in values.items() if value]


def _pedigree(made: Provenance) -> dict[str, Any]:
    """Return the float model that the file was made from."""
    if made.origin is None:
        return {}
    properties = _named(model=made.origin.model, weights=made.origin.weights)
    return {"ancestors": [{"type": _MODEL, "name": "float model", "properties": properties}]}


def _model_card(made: Provenance, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    card: dict[str, Any] = {}
    if made.origin is not None and made.origin.samples:
        count = quantity(made.origin.samples, "calibration sample")
        contents = {"properties": _named(samples=made.origin.data)}
        card["modelParameters"] = {
            "datasets": [{"type": "dataset", "name": count, "contents": contents}]
        }
    if metrics:
        card["quantitativeAnalysis"] = {"performanceMetrics": metrics}
    return card


def _properties(made: Provenance) -> list[dict[str, str]]:
    plan = {"target": made.target or "", "observer": made.observer or "", "plan": made.plan or ""}
    recipe = "" if made.recipe is None else json.dumps(made.recipe, sort_keys=True)
    versions = {} if made.origin is None else made.origin.versions
    return [
        *_named(producer=made.producer, **plan, recipe=recipe),
        *_named(**{f"step:{s.step}": f"{s.count} changes: {s.reason}" for s in made.steps}),
        *_named(**{f"version:{name}": version for name, version in versions.items()}),
    ]


def _metrics(file: Path, report: Report) -> list[dict[str, Any]]:
    """Return the figures of the file in a report, each with its interval where there is one."""
    for number, model in enumerate(report.models):
        if number and Path(model.file).name == file.name:
            return [*_figures(report, number)]
    others = ", ".join(Path(model.file).name for model in report.models[1:])
    raise FileError(
        f"the report is of {others}, not of {file.name}", OtherFile("give the report of this file")
    )


def _figures(report: Report, model: int) -> Iterator[dict[str, Any]]:
    samples = quantity(report.accuracy.samples, "sample")
    outcome = report.accuracy.models[model]
    for metric in report.accuracy.metrics:
        yield _metric(metric.name, metric.values[model], samples)
        drop = f"{metric.name}, loss against the float model"
        yield _metric(drop, metric.drops[model], samples, metric.intervals[model])
    if (share := outcome.agreement) is not None:
        yield _metric(report.accuracy.agreement_name, share.value, samples, share)
    if outcome.sqnr_db is not None:
        yield _metric("output SQNR, dB", outcome.sqnr_db, samples)
    for timing in report.latency:
        ratio = timing.ratios[model]
        interval = Interval(ratio.median, ratio.low, ratio.high)
        yield _metric("speed-up over float", ratio.median, timing.what, interval)


def _metric(kind: str, value: float, part: str, interval: Interval | None = None) -> dict[str, Any]:
    """Return a performance metric of a model card, whose numbers are text."""
    metric: dict[str, Any] = {"type": kind, "value": f"{value:.6g}", "slice": part}
    if interval is not None:
        bounds = {"lowerBound": interval.low, "upperBound": interval.high}
        metric["confidenceInterval"] = {name: f"{bound:.6g}" for name, bound in bounds.items()}
    return metric
