"""Ship it or not, in words, from the measurements and the goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from qtool.evaluation.latency.interleaved_timing import Timing
from qtool.evaluation.measure.accuracy import Accuracy
from qtool.evaluation.metrics import Interval, Metric
from qtool.evaluation.options import Goals
from qtool.verification import Exactness

DEFAULT_DROP = 0.01  # of a share: one point
AGREEMENT = (0.99, 0.97)  # good, and still worth a look
COVERAGE = 0.99


class Level(str, Enum):
    """How a check came out; the worst one decides."""

    GOOD = "good"
    LOOK = "look"
    BAD = "bad"

    def __str__(self) -> str:
        return self.value


HEADLINES = {
    Level.GOOD: "Ship it",
    Level.LOOK: "Look at it",
    Level.BAD: "Do not ship",
}


@dataclass(frozen=True)
class Check:
    """One question. level: good, look, bad. missed: whether a goal the user set was missed."""

    name: str
    level: Level
    text: str
    missed: bool = False


@dataclass(frozen=True)
class Verdict:
    """level: that of the worst check. headline: in two words. text: why, in a sentence."""

    level: Level
    headline: str
    text: str
    checks: tuple[Check, ...]

    @property
    def missed(self) -> bool:
        """Whether any goal that the user set was missed."""
        return any(c.missed for c in self.checks)


def make_verdict(
    accuracy: Accuracy,
    model: int,
    latency: Sequence[Timing],
    coverage: float,
    exactness: Exactness | None,
    goals: Goals,
) -> Verdict:
    """The verdict on one model beside the reference.

    Args:
        model: its place among the models. coverage: its integer share of the MACs.
    """
    checks = [_accuracy(accuracy, model, goals), *_latency(latency, model, goals)]
    checks += [_coverage(coverage, goals), _exactness(exactness)]
    worst = max((c.level for c in checks), key=list(Level).index)
    reasons = [c.text for c in checks if c.level == worst]
    text = " ".join(reasons) if worst is not Level.GOOD else _summary(checks)
    return Verdict(worst, HEADLINES[worst], text, tuple(checks))


def _summary(checks: Sequence[Check]) -> str:
    """Accuracy, and the last latency: as a rule that of the largest batch."""
    speeds = [c.text for c in checks if c.name == "latency"]
    return " ".join([checks[0].text, *speeds[-1:]])


def _accuracy(accuracy: Accuracy, model: int, goals: Goals) -> Check:
    if accuracy.metrics:
        return _metric(accuracy.metrics[0], model, accuracy.samples, goals)
    agreement = accuracy.models[model].agreement
    if agreement is None:
        return Check(
            "accuracy",
            Level.LOOK,
            "Nothing says how accurate it is: give labels, or a function with --eval.",
        )
    good, fair = AGREEMENT
    level = Level.GOOD if agreement.low >= good else Level.LOOK
    if agreement.value < fair:
        level = Level.BAD
    text = (
        f"It gives the reference's top-1 on {_percent(agreement.value)} of {accuracy.samples} "
        f"samples ({_percent(agreement.low)} to {_percent(agreement.high)}); there are no labels."
    )
    return Check("accuracy", level, text)


def _metric(metric: Metric, model: int, samples: int, goals: Goals) -> Check:
    drop, interval = metric.drops[model], metric.intervals[model]
    reference = metric.values[0]
    allowed = goals.drop
    if allowed is None:
        allowed = DEFAULT_DROP if metric.percent else DEFAULT_DROP * abs(reference)
    values = f"{_value(metric, reference)} to {_value(metric, metric.values[model])}"
    change = _change(metric, drop) + _interval_text(metric, interval)
    text = f"{metric.name} goes from {values}: {change}"
    limit = f" (allowed: {_difference(metric, allowed)})"
    if drop > allowed:
        return Check("accuracy", Level.BAD, f"{text}{limit}.", goals.drop is not None)
    if interval is not None and interval.high > allowed:
        text += f"; {samples} samples do not rule out a loss above {_difference(metric, allowed)}"
        return Check("accuracy", Level.LOOK, f"{text}.")
    return Check("accuracy", Level.GOOD, f"{text}.")


def _latency(latency: Sequence[Timing], model: int, goals: Goals) -> list[Check]:
    least = 1.0 if goals.speedup is None else goals.speedup
    found = []
    for timing in latency:
        ratio = timing.ratios[model]
        where = f"at batch {timing.batch}, {_count(timing.threads, 'thread')}"
        text = (
            f"It runs {ratio.median:.2f}x as fast as the reference {where}"
            f" ({ratio.low:.2f} to {ratio.high:.2f})."
        )
        level = Level.GOOD
        if ratio.median < least:
            level = Level.BAD if ratio.high < least else Level.LOOK
        elif ratio.low < least:
            level = Level.LOOK
        missed = goals.speedup is not None and ratio.median < least
        found.append(Check("latency", level, text, missed))
    return found


def _coverage(share: float, goals: Goals) -> Check:
    least = COVERAGE if goals.coverage is None else goals.coverage
    text = f"{_percent(share)} of the multiply-accumulates run in integer kernels."
    if share >= least:
        return Check("integer share", Level.GOOD, text)
    asked = goals.coverage is not None
    level = Level.BAD if asked else Level.LOOK
    return Check("integer share", level, text, asked)


def _exactness(found: Exactness | None) -> Check:
    name = "parity"
    if found is None:
        return Check(name, Level.LOOK, "It was not compared with the integer engine.")
    if found.exact:
        text = f"The integer engine and the runtime agree in every bit of {found.elements} outputs."
        return Check(name, Level.GOOD, text)
    text = (
        f"The integer engine and the runtime agree in {_percent(found.share)} of {found.elements} "
        f"outputs, worst difference {found.worst:.3g} codes"
    )
    if found.passed:
        return Check(
            name,
            Level.GOOD if found.worst <= 2 else Level.LOOK,
            f"{text}; {_count(found.float_steps, 'node')} in float, which may round differently.",
        )
    where = ", ".join(found.wrong[:3]) or found.first
    return Check(name, Level.BAD, f"{text}, first in {where}.")


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _value(metric: Metric, value: float) -> str:
    return _percent(value) if metric.percent else f"{value:.6g}"


def _difference(metric: Metric, value: float) -> str:
    return f"{100 * value:.2f} points" if metric.percent else f"{value:.4g}"


def _change(metric: Metric, drop: float) -> str:
    amount = _difference(metric, abs(drop))
    return "no change" if drop == 0 else f"{amount} {'worse' if drop > 0 else 'better'}"


def _interval_text(metric: Metric, interval: Interval | None) -> str:
    if interval is None or interval.low == interval.high:
        return ""
    unit = 100 if metric.percent else 1
    ends = [f"{unit * -end + 0.0:+.3g}" for end in (interval.high, interval.low)]
    return f" (95 % interval {ends[0]} to {ends[1]})"
