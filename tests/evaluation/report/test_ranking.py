"""The best of several models, on the whole and in a column."""

from dataclasses import replace

import pytest

from qtool.evaluation.report.verdict import HEADLINES, Level, best_in_column, best_model
from tests.evaluation.report.page.made_up import made_up


@pytest.fixture
def report():
    return made_up(models=4)


def judged(report, *levels, **facts):
    """The models with these verdicts, and other facts about all."""
    return [
        report.models[0],
        *(
            replace(m, verdict=replace(m.verdict, level=level, headline=HEADLINES[level]), **facts)
            for m, level in zip(report.models[1:], levels, strict=True)
        ),
    ]


def faster(report, *medians):
    last = report.latency[-1]
    ratios = [replace(r, median=m) for r, m in zip(last.ratios, (1.0, *medians), strict=True)]
    return [*report.latency[:-1], replace(last, ratios=tuple(ratios))]


def test_the_fastest_with_the_best_verdict(report):
    timings = faster(report, 2.0, 3.0, 4.0)
    models = judged(report, Level.GOOD, Level.GOOD, Level.LOOK)
    best = best_model(models, timings)
    assert best.model == "int8 2"
    assert 'the fastest with the verdict "Ship it" (3.00x' in best.reason
    models = judged(report, Level.BAD, Level.LOOK, Level.LOOK)
    assert best_model(models, timings).model == "int8 3"


def test_the_smallest_where_times_say_nothing(report):
    models = judged(report, Level.GOOD, Level.GOOD, Level.GOOD)
    models[2] = replace(models[2], size_bytes=10, runs_here=False)
    for timings in (report.latency, ()):
        assert best_model(models, timings).model == "int8 2"


def test_none_to_ship_is_none(report):
    assert best_model(judged(report, Level.BAD, Level.BAD, Level.BAD), report.latency) is None
    assert best_model(made_up().models, report.latency) is None


def test_columns(report):
    assert best_in_column(report, "size") == frozenset(), "all tie"
    models = (*report.models[:2], replace(report.models[2], size_bytes=5), report.models[3])
    assert best_in_column(replace(report, models=models), "size") == {2}
    outcomes = list(report.accuracy.models)
    outcomes[3] = replace(outcomes[3], sqnr_db=None)
    without_error = replace(report, accuracy=replace(report.accuracy, models=tuple(outcomes)))
    assert best_in_column(without_error, "sqnr") == {3}
    loss = replace(report.accuracy.metrics[1], drops=(0.0, 0.1, -0.1, 0.2))
    accuracy = replace(report.accuracy, metrics=(report.accuracy.metrics[0], loss))
    assert best_in_column(replace(report, accuracy=accuracy), "loss") == {2}
