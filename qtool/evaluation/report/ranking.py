"""Which model of a report is best: in a column of the comparison, and on the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qtool.core.number_texts import size, times
from qtool.evaluation.report.verdict import HEADLINES, Level

if TYPE_CHECKING:
    from qtool.evaluation.evaluation import Evaluation, ModelFacts
    from qtool.evaluation.latency.interleaved_timing import Timing


@dataclass(frozen=True)
class Best:
    """The best of several models, by name, and why, in words."""

    model: str
    reason: str


def best_model(models: Sequence[ModelFacts], latency: Sequence[Timing]) -> Best | None:
    """Return the fastest model with the best verdict; the smallest if none was timed.

    None with a single model besides the reference, or if no model should be shipped.
    """
    judged = [(i, m.verdict.level) for i, m in enumerate(models) if m.verdict is not None]
    level = min((level for _, level in judged), key=list(Level).index, default=Level.BAD)
    if len(judged) < 2 or level is Level.BAD:
        return None
    chosen = [i for i, own in judged if own is level]
    those = f'with the verdict "{HEADLINES[level]}"'
    if latency and all(models[i].runs_here for i in chosen):
        last = latency[-1]
        first = max(chosen, key=lambda i: last.ratios[i].median)
        speed = times(last.ratios[first].median)
        return Best(models[first].name, f"the fastest {those} ({speed}, {last.what})")
    first = min(chosen, key=lambda i: models[i].size_bytes)
    return Best(models[first].name, f"the smallest {those} ({size(models[first].size_bytes)})")


def best_in_column(report: Evaluation, column: str) -> frozenset[int]:
    """Return the models with the best value of a column, without the reference; none if all tie.

    Args:
        column: "agreement", "sqnr", "size", "latency N" (of the N-th timing) or a metric's name.
    """
    values = [_value(report, column, i) for i in range(1, len(report.models))]
    best = max(values, default=-math.inf)
    chosen = frozenset(i for i, value in enumerate(values, 1) if value == best)
    return chosen if len(chosen) < len(values) else frozenset()


def _value(report: Evaluation, column: str, model: int) -> float:
    """Return a number that is larger for a better model."""
    outcome = report.accuracy.models[model]
    if column == "agreement":
        return outcome.agreement.value if outcome.agreement else -math.inf
    if column == "sqnr":
        return math.inf if outcome.sqnr_db is None else outcome.sqnr_db
    if column == "size":
        return -report.models[model].size_bytes
    if column.startswith("latency "):
        return -report.latency[int(column.split()[1])].models[model].median
    metric = next(m for m in report.accuracy.metrics if m.name == column)
    return -metric.drops[model]
