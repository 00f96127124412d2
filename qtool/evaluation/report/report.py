"""The data of a report. JSON, Markdown and HTML are rendered from these classes alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from qtool.backends.model_file import Deployment
from qtool.core.errors import MALFORMED, FileError
from qtool.core.formats import db, percent, size, table
from qtool.core.records import from_json
from qtool.core.remedies import OtherFile
from qtool.core.summary import Result, Summary
from qtool.evaluation.latency.interleaved_timing import Timing, speed_rows
from qtool.evaluation.latency.node_times import Profile
from qtool.evaluation.machine import Machine
from qtool.evaluation.measure.accuracy import Accuracy
from qtool.evaluation.measure.layer_errors import Sensitivity
from qtool.evaluation.report.plan_facts import EdgeFact, FloatOperator, PlanRow
from qtool.evaluation.report.ranking import Best, best_in_column
from qtool.evaluation.report.verdict import Level, Verdict
from qtool.evaluation.summary_rows import (
    accuracy_rows,
    growth_warning,
    integer_row,
    size_row,
    sqnr_row,
)
from qtool.metrics.sample_statistics import AGREEMENTS
from qtool.planning.plan import Rewrite
from qtool.verification import Exactness

SCHEMA = 1


@dataclass(frozen=True)
class ModelFacts:
    """One model of the report; the first is the reference.

    Attributes:
        name: short name, unique in the report.
        file: file name.
        origin: where the file comes from, in words.
        integer_mac_share: share of MACs in integer kernels, 0 to 1.
        integer_weight_mac_share: share of MACs with integer weights and float activations, 0 to 1.
        macs: MACs of one sample.
        operators, integer_operators: audited operators, and those of them in integer kernels.
        exactness: None if the file was not compared with the integer engine.
        verdict: None for the reference.
        target: what the file was made for; None if qtool did not make it.
        mode: mode of its recipe, one of `MODES`; of those that begin with "weight-only" weights
            alone are quantized, for size and the time of a decoder's step; None if qtool did not
            make it.
        runs_here: False if the kernels that it was made for are not those of this machine, so that
            latencies measured here say nothing about the target.
        deployment: memory, and operators on accelerators, of a file for microcontrollers.
        timed: what was timed, in words: of the reference, the file that speeds are relative to, ""
            for itself; of another model, where it was timed if that has to be said, see
            `runtime_of`.
        unknown_operators: operators whose work is not known; `macs` and shares leave them out.
    """

    name: str
    file: str
    origin: str
    size_bytes: int
    integer_mac_share: float
    macs: int
    operators: int
    integer_operators: int
    exactness: Exactness | None
    verdict: Verdict | None
    target: str | None = None
    mode: str | None = None
    runs_here: bool = True
    deployment: Deployment | None = None
    integer_weight_mac_share: float = 0.0
    timed: str = ""
    unknown_operators: int = 0


@dataclass(frozen=True)
class Report(Result):
    """A report; docs/report.md describes every field.

    Attributes:
        schema: raised when a field changes its meaning or is removed.
        created: UTC, ISO 8601.
        models: the reference first.
        layers: None if the layers were not measured; `layers_note` has the reason.
        edges: inputs of operators that join several tensors.
        float_operators: operators that the runtime computes in float.
        rewrites, notes, plan: facts about the conversion; empty without the quantized model.
        best: best one of several models; None with one, or if none should be shipped.
    """

    schema: int
    title: str
    created: str
    models: tuple[ModelFacts, ...]
    machine: Machine
    accuracy: Accuracy
    latency: tuple[Timing, ...]
    profile: Profile | None
    layers: Sensitivity | None
    layers_note: str
    edges: tuple[EdgeFact, ...]
    float_operators: tuple[FloatOperator, ...]
    rewrites: tuple[Rewrite, ...]
    notes: tuple[str, ...]
    plan: tuple[PlanRow, ...]
    best: Best | None = None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Report:
        """Return a report from its JSON.

        Raises:
            FileError: another schema, or damaged JSON.
        """
        if value.get("schema") != SCHEMA:
            raise FileError(
                f"the report has schema {value.get('schema')}, this qtool reads schema {SCHEMA}",
                OtherFile("create the report again"),
            )
        try:
            report = from_json(cls, value)
            report._check()
        except MALFORMED as error:
            raise FileError(
                f"the report is damaged ({error!r})", OtherFile("create it again")
            ) from error
        return report

    def _check(self) -> None:
        """Check what the types of fields do not say: what is stored for each model.

        Raises:
            ValueError: a list is too short or too long, or a model lacks its verdict.
        """
        measured, nodes = self.accuracy, self.profile.nodes if self.profile else ()
        per_model: list[tuple[Any, ...]] = [measured.models]
        per_model += [v for m in measured.metrics for v in (m.values, m.drops, m.intervals)]
        per_model += [v for timing in self.latency for v in (timing.models, timing.ratios)]
        per_model += [v for node in nodes for v in (node.kernels, node.microseconds)]
        if any(len(values) != len(self.models) for values in per_model):
            raise ValueError(f"not all lists have an entry for each of {len(self.models)} models")
        if [m.verdict is None for m in self.models] != [i == 0 for i in range(len(self.models))]:
            raise ValueError("all models but the first, which is the reference, have a verdict")
        if measured.scores and measured.scores not in AGREEMENTS:
            raise ValueError(f"scores {measured.scores!r}")
        times = (vars(t) for each in self.latency for t in (*each.models, *each.ratios))
        if not all(isfinite(value) for numbers in times for value in numbers.values()):
            raise ValueError("a time is no number")
        shown = (worst.thumbnail for model in measured.models for worst in model.worst)
        if any(image and not image.startswith("data:image/") for image in shown):
            raise ValueError("a thumbnail is the address of an image, not the image")

    @classmethod
    def read(cls, path: Path) -> Report:
        """Return a report from report.json, or from the JSON that a command printed.

        Raises:
            FileError: there is no such file, or it holds no report.
        """
        try:
            value = json.loads(path.read_bytes())
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path}: not JSON ({error})", OtherFile("give report.json")) from error
        if not isinstance(value, dict) or not {"models", "accuracy"} <= value.keys():
            raise FileError(f"{path}: not a report", OtherFile("give the report.json of one"))
        return cls.from_json(value)

    @property
    def missed(self) -> bool:
        """True if a goal that the user set was missed."""
        return any(m.verdict is not None and m.verdict.missed for m in self.models)

    def summary(self, title: str | None = None) -> Summary:
        """Return the figures of one model, or the verdicts on several and the best of them."""
        judged = [(m, m.verdict) for m in self.models if m.verdict is not None]
        warnings = tuple(f"warning: {warning}" for warning in self.accuracy.warnings)
        if len(judged) == 1:
            model, verdict = judged[0]
            rows = self._figures()
            if verdict.level is not Level.GOOD:
                rows.append(("reason", verdict.text))
            sizes = (model.size_bytes, self.models[0].size_bytes, self.models[0].name)
            warnings = (*growth_warning(*sizes), *warnings)
            return Summary(title or model.name, verdict.headline, tuple(rows), warnings=warnings)
        verdicts = tuple((m.name, f"{v.headline}. {v.text}") for m, v in judged)
        text = "no file to ship" if self.best is None else f"best: {self.best.model}"
        text += "" if self.best is None else f", {self.best.reason}"
        return Summary(title or self.title, text, verdicts, warnings=warnings)

    def _figures(self) -> list[tuple[str, str]]:
        """Return (label, figures) of the model after the reference."""
        reference, model = self.models[0], self.models[1]
        measured, exact, name = self.accuracy, model.exactness, reference.name
        speeds = speed_rows(self.latency, 1, reference.timed or name)
        place = f", {model.timed}" if model.timed else ""
        return [
            size_row(model.size_bytes, reference.size_bytes, name),
            *((label, f"{text}{place}") for label, text in speeds),
            sqnr_row(measured.models[1].sqnr_db, measured.samples, measured.models[1].outputs),
            *accuracy_rows(measured, 1, name),
            self._integer_row(model),
            *([] if exact is None else exact.rows()[:1]),
        ]

    def _integer_row(self, model: ModelFacts) -> tuple[str, str]:
        shares = (model.integer_mac_share, model.integer_weight_mac_share)
        operators = (model.integer_operators, model.operators)
        label, text = integer_row(*shares, model.unknown_operators, model.macs, operators)
        return label, text if model.runs_here else f"{text} (as planned for {model.target})"

    def table(self) -> str:
        """Return a table of verdict, accuracy, latency and size with a column per model.

        With several models besides the reference, `*` marks the best one of a row.
        """
        metrics, outcomes = self.accuracy.metrics, self.accuracy.models
        verdicts = (m.verdict.headline if m.verdict else "reference" for m in self.models)
        rows = [("verdict", *verdicts)]
        rows += [(m.name, *self._marked(m.name, map(m.text, m.values))) for m in metrics]
        if self.accuracy.scores:
            agreements = (percent(o.agreement.value) if o.agreement else "" for o in outcomes)
            name = self.accuracy.agreement_name
            rows.append((name, *self._marked("agreement", agreements)))
        errors = ("reference", *(db(o.sqnr_db) for o in outcomes[1:]))
        rows.append(("output SQNR dB", *self._marked("sqnr", errors)))
        for number, timing in enumerate(self.latency):
            pairs = zip(timing.models, timing.ratios, strict=True)
            cells = (f"{s.median:.3f} ms ({r.median:.2f}x)" for s, r in pairs)
            rows.append((timing.what, *self._marked(f"latency {number}", cells)))
        rows.append(("size", *self._marked("size", (size(m.size_bytes) for m in self.models))))
        shares = (percent(m.integer_mac_share) for m in self.models)
        rows.append(("MACs in integer kernels", *shares))
        return table(("", *(m.name for m in self.models)), rows)

    def _marked(self, column: str, cells: Iterable[str]) -> Iterator[str]:
        """Return the cells of a row, the best of several models with a mark."""
        best = best_in_column(self, column) if len(self.models) > 2 else ()
        return (f"{cell} *" if i in best else cell for i, cell in enumerate(cells))

    def text(self) -> str:
        """Return the JSON with one line per field, so that reports can be compared with diff."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
