"""The verdict: what the numbers and the goals say."""

from dataclasses import replace
from math import isnan, nan

import pytest

from qtool.evaluation.evaluation import ModelFacts
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.measure.accuracy import Accuracy, ModelAccuracy
from qtool.evaluation.options import Goals
from qtool.evaluation.report.verdict import Level, make_verdict
from qtool.metrics.intervals import Interval
from qtool.metrics.metric import Metric
from qtool.verification import Exactness, SelfCheck

EXACT = Exactness(64, 640, 640, 0.0, None, 0)
ONE = Interval(1.0, 1.0, 1.0)


def accuracy(drop=0.0, width=0.001, agreement=None, metrics=True):
    interval = Interval(drop, drop - width, drop + width)
    top1 = Metric("top-1", True, True, "built in", (0.9, 0.9 - drop), (0.0, drop), (None, interval))
    found = ModelAccuracy(agreement, 30.0, ())
    return Accuracy(1000, (top1,) if metrics else (), (ModelAccuracy(ONE, None, ()), found))


def speed(median=2.0, low=1.9, high=2.1):
    spread = Spread(1.0, 1.0, 1.0)
    ratios = (Ratio(1, 1, 1, 1, 1), Ratio(median, low, high, low, high))
    return [Timing(1, 1, 20, 1.0, (spread, spread), ratios)]


def verdict(
    found=None,
    latency=None,
    coverage=1.0,
    exactness=EXACT,
    goals=Goals(),  # noqa: B008  # frozen
    self_test=None,
    **facts,
):
    timings = speed() if latency is None else latency
    macs, share = (0, 1.0) if isnan(coverage) else (1_000, coverage)
    own = ModelFacts("int8", "", "", 25, share, macs, 1, 1, exactness)
    models = [ModelFacts("float", "", "", 100, 0.0, 1_000, 1, 0), replace(own, **facts)]
    return make_verdict(models, 1, found or accuracy(), timings, goals, self_test)


def agrees(value, low, high):
    return {"found": accuracy(metrics=False, agreement=Interval(value, low, high))}


CASES = {
    "all is well": ({}, "good"),
    "drops too much": ({"found": accuracy(0.02)}, "bad"),
    "may drop too much": ({"found": accuracy(0.005, 0.02)}, "look"),
    "better than float": ({"found": accuracy(-0.02)}, "good"),
    "slower": ({"latency": speed(0.8, 0.7, 0.9)}, "look"),
    "perhaps slower": ({"latency": speed(0.98, 0.9, 1.1)}, "look"),
    "perhaps not faster": ({"latency": speed(1.02, 0.9, 1.1)}, "look"),
    "not timed": ({"latency": []}, "good"),
    "half in float": ({"coverage": 0.5}, "look"),
    "not exact": ({"exactness": Exactness(64, 640, 600, 3.0, "conv", 0)}, "bad"),
    "a wrong kernel": ({"exactness": Exactness(64, 640, 600, 1.0, "conv", 2, ("conv",))}, "bad"),
    "float nodes round": ({"exactness": Exactness(64, 640, 600, 1.0, "conv", 2)}, "good"),
    "float nodes differ": ({"exactness": Exactness(64, 640, 600, 9.0, "conv", 2)}, "look"),
    "not compared": ({"exactness": None}, "look"),
    "agrees": (agrees(0.995, 0.991, 0.999), "good"),
    "agrees mostly": (agrees(0.98, 0.97, 0.99), "look"),
    "disagrees": (agrees(0.9, 0.88, 0.92), "bad"),
    "nothing to go by": ({"found": accuracy(metrics=False)}, "look"),
}


@pytest.mark.parametrize("case", CASES)
def test_level(case):
    given, level = CASES[case]
    found = verdict(**given)
    assert found.level == level
    headlines = {"good": "Ship it", "look": "Needs review", "bad": "Do not ship"}
    assert found.headline == headlines[level]
    assert found.text
    assert not found.missed


@pytest.mark.parametrize(
    ("goals", "given"),
    [
        (Goals(drop=0.001), {"found": accuracy(0.005)}),
        (Goals(speedup=3.0), {}),
        (Goals(coverage=0.9), {"coverage": 0.8}),
        (Goals(drop=0.001), agrees(0.995, 0.99, 1)),
        (Goals(drop=0.001), {"found": accuracy(metrics=False)}),
        (Goals(drop=0.5), {"found": accuracy(nan)}),
        (Goals(drop=0.5), agrees(nan, nan, nan)),
        (Goals(speedup=1.0), {"latency": []}),
        (Goals(speedup=1.0), {"latency": speed(nan, nan, nan)}),
        (Goals(coverage=0.1), {"coverage": nan}),
    ],
)
def test_goals_of_the_user(goals, given):
    assert verdict(**given, goals=goals).missed
    assert not verdict(**given).missed
    assert verdict(**given, goals=goals).level == "bad"


def test_a_right_file_that_is_slower_is_not_refused():
    found = verdict(latency=speed(0.8, 0.7, 0.9))
    assert found.text.startswith("top-1 is unchanged")
    assert "Nothing is wrong; the speed needs review: Speed-up over the reference is 0.80x" in (
        found.text
    )
    assert "0.80x" not in verdict(accuracy(0.02), speed(0.8, 0.7, 0.9)).text


def test_a_drop_without_labels_is_one_of_the_agreement():
    agreement = agrees(0.95, 0.93, 0.97)
    found = verdict(**agreement, goals=Goals(drop=0.02))
    assert found.missed
    assert "95.00 % of 1,000 samples" in found.text
    assert "no labels were passed (allowed: 98.00 %)" in found.text
    assert verdict(**agreement, goals=Goals(drop=0.1)).level == "good"


ELSEWHERE = {"target": "onnxruntime-arm", "mode": "static", "runs_here": False}
SMALL = {"mode": "weight-only-int4", "size_bytes": 20}
SLOW = {"latency": speed(0.8, 0.7, 0.9)}


def test_latency_of_a_file_for_another_machine_is_not_judged():
    found = verdict(**SLOW, **ELSEWHERE)
    assert found.headline == "Ship it"
    latency = next(c for c in found.checks if c.name == "latency")
    assert latency.level is Level.NOT_JUDGED
    assert "0.80x" in latency.text
    assert "for onnxruntime-arm, whose kernels are not those of this machine" in latency.text
    assert "0.80x" not in found.text


def test_a_file_made_for_size_is_judged_by_its_size():
    bytes_alone = {**SLOW, "coverage": 0.0, "exactness": None}
    found = verdict(**bytes_alone, **SMALL)
    assert found.headline == "Ship it"
    left_out = {c.name for c in found.checks if c.level is Level.NOT_JUDGED}
    assert left_out == {"latency", "integer share", "parity"}
    assert "20 % of the size" in found.text
    larger = {"mode": "weight-only", "size_bytes": 110}
    assert verdict(**bytes_alone, **larger).level == "bad"


@pytest.mark.parametrize("purpose", [ELSEWHERE, SMALL])
def test_a_goal_is_judged_whatever_the_file_is_for(purpose):
    found = verdict(**SLOW, goals=Goals(speedup=1.5), **purpose)
    assert found.missed
    assert found.level == "bad"


def test_equal_values_are_unchanged():
    text = verdict(accuracy(0.0)).text
    assert "top-1 is unchanged at 90.00 % (95 % interval -0.10 to +0.10 points)" in text
    assert verdict(latency=speed(1.9, 1.9, 1.9)).text.endswith("1 thread.")


@pytest.mark.parametrize(
    ("self_test", "level", "text"),
    [
        (SelfCheck(present=True, unmodified=True, tensors=9, identical=9), "good", "9 of 9"),
        (SelfCheck(present=True, unmodified=True, tensors=9, identical=8), "bad", "fails (8 of 9"),
        (SelfCheck(present=True, unmodified=False, tensors=9, identical=9), "bad", "fails"),
        (None, "look", "not compared with the integer engine"),
    ],
)
def test_without_the_engine_the_self_test_is_the_parity(
    self_test: SelfCheck | None, level: str, text: str
) -> None:
    check = verdict(exactness=None, self_test=self_test).checks[-1]
    assert (check.name, check.level) == ("parity", level)
    assert text in check.text
    exact = verdict(self_test=self_test).checks[-1]
    assert (exact.level, "bit for bit" in exact.text) == ("good", True)


@pytest.mark.parametrize(
    ("mode", "growth", "level"),
    [
        ("weight-only-int4", 0.026, "good"),  # the tutorial's file
        ("weight-only-int4", 0.06, "bad"),
        ("weight-only-int2", 0.2, "good"),
        ("weight-only-int2", 0.7, "bad"),
        ("weight-only", 0.026, "bad"),
        ("static", 0.005, "good"),
    ],
)
def test_language_models_of_few_bits_are_judged_as_such(mode, growth, level):
    drop = 17.65 * growth
    interval = Interval(drop, drop - 0.01, drop + 0.01)
    metric = Metric(
        "perplexity", False, False, "built in", (17.65, 17.65 + drop), (0.0, drop), (None, interval)
    )
    measured = Accuracy(100, (metric,), accuracy().models)
    judged = verdict(measured, mode=mode)
    assert judged.level == level
    strict = verdict(measured, mode=mode, goals=Goals(drop=0.01))
    assert (strict.level, strict.missed) == ("bad", True)
