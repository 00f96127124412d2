"""The verdict of a report: ship the model or not, from measurements and goals; which is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from qtool.core.argument_names import argument
from qtool.core.number_texts import percent, quantity, size, times
from qtool.core.option_names import MODES
from qtool.core.torch_package import has_torch
from qtool.evaluation.latency.interleaved_timing import Ratio, Timing
from qtool.evaluation.measure.accuracy import Accuracy
from qtool.evaluation.options import Goals
from qtool.metrics.intervals import Interval
from qtool.metrics.metric import PERPLEXITY, Metric, default_drop
from qtool.metrics.output_agreement import OutputAgreement
from qtool.verification import Exactness, SelfCheck
from qtool.verification.coverage import unknown_work

if TYPE_CHECKING:
    from qtool.evaluation.evaluation import Evaluation, ModelFacts
    from qtool.evaluation.latency.interleaved_timing import Timing


GOOD_AGREEMENT, FAIR_AGREEMENT = 0.99, 0.97
COVERAGE = 0.99
SIZE_MODES = tuple(mode for mode in MODES if mode.startswith("weight-only"))
"""Modes that make a file smaller, and no operator faster by itself."""
PERPLEXITY_GROWTH = {"weight-only-int4": 0.05, "weight-only-int2": 0.25}
"""Largest growth of perplexity without a goal, as a share, of modes that trade it for size."""


class Level(str, Enum):
    """Outcome of a check, from best to worst; the worst of all checks is that of the verdict."""

    NOT_JUDGED = "not judged"  # measured, but no promise of the file
    GOOD = "good"
    LOOK = "look"
    BAD = "bad"

    def __str__(self) -> str:
        return self.value


HEADLINES = {
    Level.GOOD: "Ship it",
    Level.LOOK: "Needs review",
    Level.BAD: "Do not ship",
}


@dataclass(frozen=True)
class Check:
    """One check of a model.

    Attributes:
        name: "accuracy", "size", "latency", "integer share" or "parity".
        level: how it came out.
        text: the measurement, in a sentence.
        missed: True if a goal that the user set was missed.
    """

    name: str
    level: Level
    text: str
    missed: bool = False


@dataclass(frozen=True)
class Verdict:
    """The verdict on one model.

    Attributes:
        level: that of the worst check.
        headline: the level in two words.
        text: the reason, in a sentence.
        checks: all checks.
    """

    level: Level
    headline: str
    text: str
    checks: tuple[Check, ...]

    @property
    def decisive_timing(self) -> int:
        """Index of the timing that decides about the latency: the last one of the worst level."""
        levels = [list(Level).index(c.level) for c in self.checks if c.name == "latency"]
        return max(range(len(levels)), key=lambda i: (levels[i], i))

    @property
    def missed(self) -> bool:
        """True if any goal that the user set was missed."""
        return any(c.missed for c in self.checks)


def make_verdict(
    models: Sequence[ModelFacts],
    model: int,
    accuracy: Accuracy,
    latency: Sequence[Timing],
    goals: Goals,
    self_test: SelfCheck | None = None,
) -> Verdict:
    """Return the verdict on one model, compared with the reference: it is judged by what it
    promises, and by goals of the user whatever it is for.

    Without a goal, speed alone refuses no file: it is right, and the user knows what the speed is
    worth.

    Args:
        models: all models; the first is the reference.
        model: index of the one.
        self_test: result of the test in the file, which counts where it was not compared with the
            integer engine.
    """
    facts = models[model]
    exactness, for_size = facts.exactness, facts.mode in SIZE_MODES
    checks = [_accuracy(accuracy, model, goals, facts.mode)]
    if for_size:
        checks.append(_size(facts.size_bytes / models[0].size_bytes))
    elsewhere = _not_for_speed(facts) if goals.speedup is None else ""
    checks += [_judged(check, elsewhere) for check in _latency(latency, model, goals)]
    weights_alone = "only weights are quantized" if for_size else ""
    checks.append(_judged(_coverage(facts, goals), "" if goals.coverage else weights_alone))
    compared = exactness or self_test
    checks.append(_judged(_parity(exactness, self_test), "" if compared else weights_alone))
    worst = max((c.level for c in checks), key=list(Level).index)
    reasons = [c for c in checks if c.level == worst]
    text = " ".join(c.text for c in reasons) if worst is not Level.GOOD else _summary(checks)
    if worst is Level.LOOK and {c.name for c in reasons} == {"latency"}:
        text = f"{checks[0].text} Nothing is wrong; the speed needs review: {text}"
    return Verdict(worst, HEADLINES[worst], text, tuple(checks))


def _not_for_speed(facts: ModelFacts) -> str:
    """Return why latencies on this machine say nothing about a file; "" if they do."""
    if not facts.runs_here:
        return f"the file is for {facts.target}, whose kernels are not those of this machine"
    return f"{facts.mode} makes files smaller" if facts.mode in SIZE_MODES else ""


def _summary(checks: Sequence[Check]) -> str:
    """Accuracy, size if it counts, and the last latency, usually that of the largest batch."""
    good = [c for c in checks if c.level is Level.GOOD]
    speeds = [c.text for c in good if c.name == "latency"]
    return " ".join([checks[0].text, *(c.text for c in good if c.name == "size"), *speeds[-1:]])


def _judged(check: Check, exception: str) -> Check:
    """Return the check, out of the verdict if there is an exception."""
    if not exception:
        return check
    text = f"{check.text.removesuffix('.')}; not judged: {exception}."
    return Check(check.name, Level.NOT_JUDGED, text)


def _size(share: float) -> Check:
    small = share < 1
    text = f"The file has {percent(share, 0)} of the size of the reference"
    text += "." if small else ", in a mode that makes files smaller."
    return Check("size", Level.GOOD if small else Level.BAD, text)


def _accuracy(accuracy: Accuracy, model: int, goals: Goals, mode: str | None) -> Check:
    if accuracy.metrics:
        metric = accuracy.metrics[0]
        allowed = _allowed_drop(metric, mode) if goals.drop is None else goals.drop
        return _metric(metric, model, accuracy.samples, allowed, goals.drop is not None)
    outcome, is_goal = accuracy.models[model], goals.drop is not None
    checks = [_yardstick(each, goals.drop) for each in outcome.yardsticks]
    if outcome.agreement is not None:
        checks.insert(0, _same_answers(accuracy, outcome.agreement, goals.drop))
    if not checks:
        text = f"Accuracy was not measured: pass labels, or a function with {argument('--eval')}."
        return Check("accuracy", Level.BAD if is_goal else Level.LOOK, text, is_goal)
    return max(checks, key=lambda check: list(Level).index(check.level))


def _same_answers(accuracy: Accuracy, agreement: Interval, drop: float | None) -> Check:
    """Judge the share of equal classes or tokens of the first output."""
    least, fair = GOOD_AGREEMENT, FAIR_AGREEMENT
    if drop is not None:
        least = fair = 1 - drop
    level = Level.GOOD if agreement.low >= least else Level.LOOK
    if not agreement.value >= fair:
        level = Level.BAD
    of = (
        quantity(accuracy.tokens, "token")
        if accuracy.tokens
        else quantity(accuracy.samples, "sample")
    )
    text = (
        f"{accuracy.agreement_name.capitalize()} with the reference is {percent(agreement.value)} "
        f"of {of} (95 % interval {percent(agreement.low)} to {percent(agreement.high)}); no labels "
        f"were passed{'' if drop is None else f' (allowed: {percent(fair)})'}."
    )
    return Check("accuracy", level, text, drop is not None and level is Level.BAD)


def _yardstick(output: OutputAgreement, drop: float | None) -> Check:
    """Judge what an output agrees in that is no share of equal classes or tokens."""
    if drop is None:
        near = output.is_near and not output.caution
        level = Level.GOOD if near else Level.BAD if output.is_poor else Level.LOOK
    else:
        level = Level.GOOD if output.value >= 1 - drop else Level.BAD
    allowed = "" if drop is None else f" (allowed: {1 - drop:.4g})"
    text = (
        f"Output '{output.output}' agrees with the reference: {output.with_interval()}{allowed}; "
        "no labels were passed."
    )
    return Check("accuracy", level, text, drop is not None and level is Level.BAD)


def _allowed_drop(metric: Metric, mode: str | None) -> float:
    """Return the largest loss of a metric without a goal, in its unit."""
    reference = metric.values[0]
    if metric.name == PERPLEXITY and mode in PERPLEXITY_GROWTH:
        return PERPLEXITY_GROWTH[mode] * reference
    return default_drop(metric.percent, reference)


def _metric(metric: Metric, model: int, samples: int, allowed: float, is_goal: bool) -> Check:
    drop, interval = metric.drops[model], metric.intervals[model]
    reference = metric.values[0]
    values = f"{_value(metric, reference)} to {_value(metric, metric.values[model])}"
    ends = metric.change_interval(model)
    ends = ends and f" (95 % interval {ends})"
    text = f"{metric.name} goes from {values}: {_change(metric, drop)}{ends}"
    if drop == 0:
        text = f"{metric.name} is unchanged at {_value(metric, reference)}{ends}"
    if not drop <= allowed:
        limit = f" (allowed: {_difference(metric, allowed)})"
        return Check("accuracy", Level.BAD, f"{text}{limit}.", is_goal)
    if interval is not None and not interval.high <= allowed:
        limit = _difference(metric, allowed)
        text += f"; {quantity(samples, 'sample')} cannot rule out a loss above {limit}"
        return Check("accuracy", Level.LOOK, f"{text}.")
    return Check("accuracy", Level.GOOD, f"{text}.")


def _latency(latency: Sequence[Timing], model: int, goals: Goals) -> list[Check]:
    least = 1.0 if goals.speedup is None else goals.speedup
    checks = []
    if goals.speedup is not None and not latency:
        checks = [Check("latency", Level.BAD, "The speed was not measured.", missed=True)]
    for timing in latency:
        ratio = timing.ratios[model]
        where = f"for a {timing.what}" if timing.phase else f"at {timing.what}"
        text = f"Speed-up over the reference is {ratio.median:.2f}x {where}{_width(ratio)}."
        missed = goals.speedup is not None and not ratio.median >= least
        level = Level.GOOD if ratio.low >= least else Level.LOOK
        if missed and not ratio.high >= least:
            level = Level.BAD
        checks.append(Check("latency", level, text, missed))
    return checks


def _coverage(facts: ModelFacts, goals: Goals) -> Check:
    least = COVERAGE if goals.coverage is None else goals.coverage
    missed, share, unknown = bool(goals.coverage), facts.integer_mac_share, facts.unknown_operators
    if not facts.macs and not unknown:
        level = Level.BAD if missed else Level.NOT_JUDGED
        return Check("integer share", level, "No operator has MACs.", missed)
    text = f"{percent(share)} of the MACs run in integer kernels{unknown_work(unknown)}."
    if share >= least and not (unknown and least):
        return Check("integer share", Level.GOOD, text)
    return Check("integer share", Level.BAD if missed else Level.LOOK, text, missed)


def _parity(exactness: Exactness | None, self_test: SelfCheck | None) -> Check:
    name = "parity"
    if exactness is None and self_test is not None:
        codes = f"{self_test.identical} of {quantity(self_test.tensors, 'integer tensor')}"
        if self_test.passed:
            return Check(name, Level.GOOD, f"By its self-test the file has {codes} as planned.")
        return Check(name, Level.BAD, f"The self-test of the file fails ({codes} as planned).")
    if exactness is None:
        why = "" if has_torch() else ", which needs torch"
        text = f"The file was not compared with the integer engine{why}."
        return Check(name, Level.LOOK, text)
    if exactness.exact:
        text = (
            f"The integer engine matches {exactness.runtime} bit for bit "
            f"({exactness.elements} outputs)."
        )
        return Check(name, Level.GOOD, text)
    text = (
        f"The integer engine matches {exactness.runtime} in {percent(exactness.share)} of "
        f"{exactness.elements} outputs, largest difference {exactness.worst:.3g} codes"
    )
    if exactness.passed:
        return Check(
            name,
            Level.GOOD if exactness.worst <= 2 else Level.LOOK,
            f"{text}; {quantity(exactness.float_steps, 'float node')} may round differently.",
        )
    where = ", ".join(exactness.wrong[:3]) or exactness.first
    return Check(name, Level.BAD, f"{text}, first in {where}.")


def _width(ratio: Ratio) -> str:
    ends = f"{ratio.low:.2f}", f"{ratio.high:.2f}"
    return "" if ends[0] == ends[1] else f" (95 % interval {ends[0]} to {ends[1]})"


def _value(metric: Metric, value: float) -> str:
    return percent(value) if metric.percent else f"{value:.6g}"


def _difference(metric: Metric, value: float) -> str:
    return f"{100 * value:.2f} points" if metric.percent else f"{value:.4g}"


def _change(metric: Metric, drop: float) -> str:
    amount = _difference(metric, abs(drop))
    return f"{amount} {'better' if drop < 0 else 'worse'}"


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
    values = [_column_value(report, column, i) for i in range(1, len(report.models))]
    best = max(values, default=-math.inf)
    chosen = frozenset(i for i, value in enumerate(values, 1) if value == best)
    return chosen if len(chosen) < len(values) else frozenset()


def _column_value(report: Evaluation, column: str, model: int) -> float:
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
