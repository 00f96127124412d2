"""The result of a gate: an outcome, its reasons, forms for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import ClassVar
from xml.etree import ElementTree as ET

from qtool.core.number_texts import one_line, quantity
from qtool.core.summary import Result, Summary
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.metrics.intervals import Interval


class Outcome(str, Enum):
    """What a gate decides; the order is that in which one of several wins."""

    REGRESSION = "regression"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"
    ACCEPTED = "accepted"

    def __str__(self) -> str:
        return self.value


EXIT_CODES = {
    Outcome.ACCEPTED: 0,
    Outcome.REGRESSION: 1,
    Outcome.INCONCLUSIVE: 3,
    Outcome.NOT_COMPARABLE: 4,
}
_COLORS = {
    Outcome.ACCEPTED: "brightgreen",
    Outcome.REGRESSION: "red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NOT_COMPARABLE: "lightgrey",
}


@dataclass(frozen=True)
class GateCheck:
    """One of the questions of a gate.

    Attributes:
        name: what was looked at: "file", "inputs", "weights", "samples", the metric, or "speed".
        outcome: what it says by itself.
        text: why, in a sentence.
    """

    name: str
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class GateMetricResult:
    """The metric of a gate.

    Attributes:
        name: its name.
        float_: its value for the float file.
        value: its value for the quantized file.
        drop: difference by which the quantized file is worse. Each end is exceeded with a
            probability of 1 - `confidence`.
        max_drop: the largest drop that is accepted.
        confidence: see `drop`.
        samples_needed: about how many samples would decide if they were like these; null if these
            do, or no number would.
        output: the output that has the vectors of the metric, and how its tokens are pooled, or of
            several outputs the one whose agreement it is; "" for other metrics.
    """

    name: str
    float_: float
    value: float
    drop: Interval
    max_drop: float
    confidence: float
    samples_needed: int | None
    output: str = ""


@dataclass(frozen=True)
class GateRun:
    """On what, where and when a gate decided.

    Attributes:
        data_sha256: SHA-256 of the samples, whatever batches they came in.
        labels_sha256: SHA-256 of the labels that the metric used; "" without.
        cpu: model name of the processor.
        runtime: what ran the quantized file, with its version.
        time: begin, ISO 8601 in UTC.
        seconds: duration.
    """

    data_sha256: str
    labels_sha256: str
    cpu: str
    runtime: str
    time: str
    seconds: float


@dataclass(frozen=True)
class GateResult(Result):
    """Whether a quantized file may take the place of its float file.

    Attributes:
        file, against: paths of both files.
        checks: each question that was asked, in order.
        samples: number of samples that both ran on.
        metric: null if it was not measured.
        speedup: float latency / quantized latency; null without `min_speedup`.
        run: data, machine and time; null if the files did not run on all samples.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("outcome", "exit_code")

    file: str
    against: str
    checks: tuple[GateCheck, ...]
    samples: int = 0
    metric: GateMetricResult | None = None
    speedup: Ratio | None = None
    run: GateRun | None = None

    @property
    def outcome(self) -> Outcome:
        """The first one of regression, not comparable, inconclusive and accepted that a check
        has."""
        return min((check.outcome for check in self.checks), key=list(Outcome).index)

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 regression, 3 inconclusive, 4 not comparable."""
        return EXIT_CODES[self.outcome]

    def summary(self, title: str = "") -> Summary:
        """Return the outcome and a line per check."""
        rows = [
            (c.name, c.text if c.outcome is Outcome.ACCEPTED else f"{c.outcome}: {c.text}")
            for c in self.checks
        ]
        return Summary(title or self.file, str(self.outcome), tuple(rows))

    def reason(self) -> str:
        """Return the check that decides, as one line."""
        decided = [c for c in self.checks if c.outcome is self.outcome]
        return one_line(f"{decided[-1].name}: {decided[-1].text}")

    def badge(self) -> str:
        """Return the JSON of an endpoint of shields.io."""
        message = str(self.outcome)
        if self.metric is not None:
            message = f"{message}, {self.metric.name} {self.metric.value:.4g}"
        badge: Mapping[str, object] = {
            "schemaVersion": 1,
            "label": "quantization",
            "message": message,
            "color": _COLORS[self.outcome],
        }
        return json.dumps(badge) + "\n"

    def junit(self) -> str:
        """Return a JUnit report with a test case per check: a regression is a failure, anything
        else that is not accepted an error. Figures, data and machine are properties."""
        counts = [sum(_tag(c) == tag for c in self.checks) for tag in ("failure", "error")]
        names = ("name", "tests", "failures", "errors")
        values = ["qtool gate", len(self.checks), *counts]
        suite = ET.Element("testsuite", dict(zip(names, map(str, values), strict=True)))
        if self.run is not None:
            suite.attrib |= {"time": f"{self.run.seconds:.3f}", "timestamp": self.run.time}
        properties = ET.SubElement(suite, "properties")
        for name, value in self.figures().items():
            ET.SubElement(properties, "property", {"name": name, "value": one_line(str(value))})
        for check in self.checks:
            case = ET.SubElement(
                suite, "testcase", {"classname": one_line(self.file), "name": one_line(check.name)}
            )
            if tag := _tag(check):
                details = {"type": str(check.outcome), "message": one_line(check.text)}
                ET.SubElement(case, tag, details)
            ET.SubElement(case, "system-out").text = one_line(check.text)
        ET.indent(suite)
        text = ET.tostring(suite, "unicode", xml_declaration=False)
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'

    def figures(self) -> dict[str, object]:
        """Return the numbers of the result, and on what they were measured, by flat names."""
        figures: dict[str, object] = {"outcome": str(self.outcome), "samples": self.samples}
        if (metric := self.metric) is not None:
            figures |= {"metric": metric.name, "float": metric.float_, "quantized": metric.value}
            figures |= {"drop": metric.drop.value, "drop_low": metric.drop.low}
            figures |= {"drop_high": metric.drop.high, "max_drop": metric.max_drop}
        if (speed := self.speedup) is not None:
            figures |= {"speedup": speed.median}
            figures |= {"speedup_low": speed.low, "speedup_high": speed.high}
        return figures if self.run is None else figures | asdict(self.run)

    def markdown(self) -> str:
        """Return a table with a row per check, for the summary of a CI job."""
        lines = [
            f"### qtool gate: {self.outcome}",
            "",
            f"{_cell(self.file)} in place of {_cell(self.against)}",
            "",
            "| check | outcome | |",
            "|---|---|---|",
            *(f"| {_cell(c.name)} | {c.outcome} | {_cell(c.text)} |" for c in self.checks),
        ]
        if (run := self.run) is not None:
            data = f"data {run.data_sha256[:12]}" + f", labels {run.labels_sha256[:12]}" * bool(
                run.labels_sha256
            )
            where = f"{quantity(self.samples, 'sample')}, {data}, {run.runtime}, {run.cpu}"
            lines += ["", _cell(where)]
        return "\n".join(lines) + "\n"


_MARKS = str.maketrans({c: f"&#{ord(c)};" for c in "|`*[]<>&~#:@"})


def _cell(text: str) -> str:
    """Return a text as one cell of a Markdown table, without any markup in it."""
    return one_line(text).translate(_MARKS)


def _tag(check: GateCheck) -> str:
    if check.outcome is Outcome.ACCEPTED:
        return ""
    return "failure" if check.outcome is Outcome.REGRESSION else "error"
