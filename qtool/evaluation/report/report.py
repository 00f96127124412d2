"""The data of a report. JSON, Markdown and HTML are rendered from these classes alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from qtool.core.errors import MALFORMED, FileError
from qtool.core.records import from_json
from qtool.core.remedies import OtherFile
from qtool.core.summary import Summary
from qtool.evaluation.evaluation import Evaluation
from qtool.evaluation.latency.node_times import Profile
from qtool.evaluation.measure.layer_errors import Sensitivity
from qtool.evaluation.report.verdict import Best, Level
from qtool.metrics.sample_statistics import AGREEMENTS
from qtool.planning.plan import Rewrite


@dataclass(frozen=True)
class EdgeFact:
    """One input of an operator that joins several: concat, add, mul, matmul of two activations.

    Attributes:
        source: the tensor that is read.
        how: "copied" or "same scale" (parameters of the result), "requantized" (in the kernel of a
            concat; "to uint16" before an operator of another type), "rescaled in the kernel",
            "float".
        shared_with: other tensors with the same parameters.
        input_scale, output_scale: scales; None if per channel or in float.
        lost_bits: resolution lost by sharing: log2 of the scale over the scale of its own range.
    """

    node: str
    op: str
    source: str
    how: str
    shared_with: tuple[str, ...]
    input_scale: float | None
    output_scale: float | None
    lost_bits: float | None


@dataclass(frozen=True)
class FloatOperator:
    """An operator that the runtime computes in float; `name` is that of the user's model."""

    model: str
    name: str
    op: str
    kernel: str
    macs: int
    reason: str


@dataclass(frozen=True)
class PlanRow:
    """One node of the plan.

    Attributes:
        form: how it is executed.
        output: type of its result.
        reason: why.
        inputs: nodes of the plan and inputs of the model whose values it reads.
        macs: multiply-accumulates for one sample.
    """

    node: str
    op: str
    form: str
    output: str
    reason: str
    inputs: tuple[str, ...] = ()
    macs: int = 0


SCHEMA = 1
_LONGEST = 4096  # characters of the name of a model, as of a path


@dataclass(frozen=True, kw_only=True)
class Report(Evaluation):
    """A report: an evaluation with verdicts, layers and plan; docs/report.md describes every field.

    Attributes:
        schema: raised when a field changes its meaning or is removed.
        created: UTC, ISO 8601.
        profile: None where the runtime of a file has none.
        layers: None if the layers were not measured; `layers_note` has the reason.
        edges: inputs of operators that join several tensors.
        float_operators: operators that the runtime computes in float.
        rewrites, notes, plan: facts about the conversion; empty without the quantized model.
        best: best one of several models; None with one, or if none should be shipped.
    """

    schema: int
    title: str
    created: str
    profile: Profile | None
    float_operators: tuple[FloatOperator, ...]
    best: Best | None = None
    layers: Sensitivity | None = None
    layers_note: str = ""
    edges: tuple[EdgeFact, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    notes: tuple[str, ...] = ()
    plan: tuple[PlanRow, ...] = ()

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
        if any(len(m.name) > _LONGEST for m in self.models):
            raise ValueError(f"the name of a model has more than {_LONGEST:,} characters")
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
            why = "nested too deeply" if isinstance(error, RecursionError) else error
            raise FileError(f"{path}: not JSON ({why})", OtherFile("give report.json")) from error
        if not isinstance(value, dict) or not {"title", "accuracy"} <= value.keys():
            raise FileError(f"{path}: not a report", OtherFile("give the report.json of one"))
        return cls.from_json(value)

    @property
    def missed(self) -> bool:
        """True if a goal that the user set was missed."""
        return any(m.verdict is not None and m.verdict.missed for m in self.models)

    def summary(self, title: str | None = None) -> Summary:
        """Return the figures of one model, or the verdicts on several and the best of them."""
        judged, warnings = [(m, m.verdict) for m in self.models if m.verdict], self.warnings()
        if len(judged) == 1:
            model, verdict = judged[0]
            rows = self.figures()
            if verdict.level is not Level.GOOD:
                rows.append(("reason", verdict.text))
            return Summary(title or model.name, verdict.headline, tuple(rows), warnings=warnings)
        verdicts = tuple((m.name, f"{v.headline}. {v.text}") for m, v in judged)
        text = "no file to ship" if self.best is None else f"best: {self.best.model}"
        text += "" if self.best is None else f", {self.best.reason}"
        return Summary(title or self.title, text, verdicts, warnings=warnings)

    def text(self) -> str:
        """Return the JSON with one line per field, so that reports can be compared with diff."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
