"""What a report holds. JSON, Markdown and HTML are made from these objects and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from qtool.core.errors import FileError
from qtool.core.formats import db, percent, size, table
from qtool.core.records import from_json, to_json
from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.latency.node_times import NodeTime
from qtool.evaluation.machine import Machine
from qtool.evaluation.measure.accuracy import Accuracy
from qtool.evaluation.measure.sensitivity import Sensitivity
from qtool.evaluation.report.plan_summary import EdgeFact, FloatOperator, PlanRow
from qtool.evaluation.report.verdict import Verdict
from qtool.planning.plan import Rewrite
from qtool.verification import Exactness

SCHEMA = 1


@dataclass(frozen=True)
class ModelFacts:
    """One model of the report; the first is the reference.

    origin: what it is, in words. integer_mac_share: 0 to 1. macs: of one sample. operators,
    integer_operators: of those that the audit looks at. exactness: None where it was not compared.
    verdict: None for the reference.
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


@dataclass(frozen=True)
class Profile:
    """The time of each node at one batch size and number of threads."""

    batch: int
    threads: int
    nodes: tuple[NodeTime, ...]


@dataclass(frozen=True)
class Report:
    """Everything that is shown. Documented field by field in docs/report.md.

    schema: raised when a field changes its meaning or goes. created: UTC, ISO 8601. layers: None
    where the layers could not be looked at; `layers_note` says why.
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

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_json(self)
        return found

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Report:
        """A report from its JSON.

        Raises:
            FileError: of another schema, or damaged.
        """
        if value.get("schema") != SCHEMA:
            raise FileError(
                f"report of schema {value.get('schema')}; qtool here reads {SCHEMA}: make it again"
            )
        try:
            return from_json(cls, value)
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"a damaged report ({error!r}); make it again") from error

    @property
    def missed(self) -> bool:
        """Whether a goal that the user set was missed."""
        return any(m.verdict is not None and m.verdict.missed for m in self.models)

    def __str__(self) -> str:
        """The verdicts, a line for each model that is judged."""
        judged = [(m.name, m.verdict) for m in self.models if m.verdict is not None]
        return "\n".join(f"{name}: {v.headline}. {v.text}" for name, v in judged)

    def table(self) -> str:
        """The models side by side: accuracy, latency, size."""
        metrics, outcomes = self.accuracy.metrics, self.accuracy.models
        rows = [(m.name, *map(m.text, m.values)) for m in metrics]
        agreements = (o.agreement for o in outcomes)
        rows.append(("same answer", *(percent(a.value) if a else "" for a in agreements)))
        rows.append(("output SQNR dB", "reference", *(db(o.sqnr_db) for o in outcomes[1:])))
        for timing in self.latency:
            threads = f"{timing.threads} thread{'' if timing.threads == 1 else 's'}"
            pairs = zip(timing.models, timing.ratios, strict=True)
            cells = (f"{s.median:.3f} ms ({r.median:.2f}x)" for s, r in pairs)
            rows.append((f"batch {timing.batch}, {threads}", *cells))
        rows.append(("size", *(size(m.size_bytes) for m in self.models)))
        shares = (percent(m.integer_mac_share) for m in self.models)
        rows.append(("MACs in integer kernels", *shares))
        return table(("", *(m.name for m in self.models)), rows)

    def text(self) -> str:
        """The JSON, one line a field, so that two reports can be compared line by line."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
