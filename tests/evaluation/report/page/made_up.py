"""A report with made-up numbers, of as many layers as a test wants."""

import random
from dataclasses import replace

import pytest

from qtool.evaluation.evaluation import ModelFacts
from qtool.evaluation.latency.interleaved_timing import Ratio, Spread, Timing
from qtool.evaluation.latency.node_times import NodeTime
from qtool.evaluation.machine import Machine
from qtool.evaluation.measure.accuracy import Accuracy, ModelAccuracy, WorstSample
from qtool.evaluation.measure.layer_errors import HistogramFacts, LayerError, Sensitivity
from qtool.evaluation.options import Goals
from qtool.evaluation.report.report import SCHEMA, EdgeFact, FloatOperator, PlanRow, Profile, Report
from qtool.evaluation.report.verdict import best_model, make_verdict
from qtool.metrics.intervals import Interval
from qtool.metrics.metric import Metric
from qtool.planning.plan import Rewrite
from qtool.verification import Exactness

__all__ = ["drawn_pages", "made_up"]

SAME = Interval(0.0, 0.0, 0.0)
HOSTILE = "</script><b>&\"'|x"  # a name that would break a page, or a table of Markdown


def drawn_pages(report: Report) -> dict[str, bytes]:
    """Return the pages with the drawings that tests are spared."""
    from qtool.evaluation.report.page.figures import figures  # an install without torch has no
    from qtool.evaluation.report.page.render import render_pages  # plotting library

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qtool.evaluation.report.page.render._figures", figures)
        return render_pages(report)


def made_up(layers: int = 12, models: int = 2, drop: float = 0.001) -> Report:
    """A report as `build` makes them; the same arguments give the same report."""
    draw = random.Random(0)
    names = ["float", *(f"int8 {i}" if models > 2 else "int8" for i in range(1, models))]
    errors = tuple(_layer(i, draw) for i in range(layers))
    accuracy = _accuracy(models, drop)
    latency = tuple(_timing(batch, models, draw) for batch in (1, 32))
    exact = Exactness(64, 640, 640, 0.0, None, 0)
    facts = [
        ModelFacts(
            name,
            f"{name}.onnx",
            "made up",
            4_000_000 if i == 0 else 1_000_000,
            float(i > 0),
            40_000_000,
            layers,
            layers if i else 0,
            exact if i else None,
        )
        for i, name in enumerate(names)
    ]
    for i in range(1, models):
        verdict = make_verdict(facts, i, accuracy, latency, Goals())
        facts[i] = replace(facts[i], verdict=verdict)
    return Report(
        schema=SCHEMA,
        title="made up",
        created="2026-01-02T03:04:05+00:00",
        models=tuple(facts),
        machine=Machine("a processor", 2, 8.0, "Linux", ("avx2",), {"onnxruntime": "1.0"}),
        accuracy=accuracy,
        latency=latency,
        profile=Profile(32, 1, tuple(_node(e.name, models, draw) for e in errors)),
        layers=Sensitivity(512, 31.4159, 3.4, errors),
        layers_note="",
        edges=(
            EdgeFact("cat", "concat", "left", "requantized", (), 0.01, 0.02, 0.5),
            EdgeFact("cat", "concat", "right", "copied", ("cat",), 0.02, 0.02, None),
        ),
        float_operators=(FloatOperator("int8", HOSTILE, "Erf", "Erf", 0, "no integer kernel"),),
        rewrites=(Rewrite("average_pool", 2, "a depthwise convolution is faster"),),
        notes=("conv.bias: scale widened",),
        plan=_plan([e.name for e in errors]),
        best=best_model(facts, latency),
    )


def _plan(names: list[str]) -> tuple[PlanRow, ...]:
    """A chain in which every third node also reads the one three before it."""
    return tuple(
        PlanRow(
            name,
            "conv",
            ("integer", "fused", "weights", "float", "pass")[i % 5],
            "uint8",
            "float on purpose" if i % 5 == 3 else "",
            (names[i - 1] if i else "x", *([names[i - 3]] if i > 2 and i % 3 == 0 else [])),
            1000 * i,
        )
        for i, name in enumerate(names)
    )


def _layer(i: int, draw: random.Random) -> LayerError:
    bars = HistogramFacts(
        -1.0,
        1.0,
        tuple(draw.randrange(1000) for _ in range(64)),
        -0.9,
        0.95,
        -0.8,
        0.8,
        -0.8,
        0.8,
        0.01,
    )
    name = HOSTILE if i == 1 else f"stage{i // 10}.block{i % 10}.conv"
    none = i == 2  # a layer without any error
    return LayerError(
        name,
        "conv",
        f"{name}.relu",
        draw.randrange(10**7),
        *(None if none else draw.uniform(20, 50) for _ in range(3)),
        0.0 if none else draw.random(),
        draw.uniform(20, 50),
        None if none else draw.uniform(-1, 5),
        32,
        None if i == 3 else bars,
        bars,
    )


def _accuracy(models: int, drop: float) -> Accuracy:
    others = range(1, models)
    top1 = Metric(
        "top-1",
        True,
        True,
        "built in",
        (0.9, *(0.9 - drop for _ in others)),
        (0.0, *(drop for _ in others)),
        (SAME, *(Interval(drop, drop - 0.002, drop + 0.002) for _ in others)),
    )
    loss = Metric(
        "loss",
        False,
        False,
        "user",
        (0.3, *(0.31 for _ in others)),
        (0.0, *(0.01 for _ in others)),
        (None,) * models,
    )
    picture = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
    worst = (
        WorstSample(7, 9.5, 3, 4, 3, "cats/7.png", picture, "cat", "dog", "cat"),
        WorstSample(2, None, 1, 1, None),
    )
    other = ModelAccuracy(Interval(0.99, 0.98, 1.0), 31.4159, worst)
    models = (ModelAccuracy(SAME, None, ()), *(other for _ in others))
    return Accuracy(1000, (top1, loss), models, "classes")


def _timing(batch: int, models: int, draw: random.Random) -> Timing:
    spreads = tuple(Spread(batch * 1.5, batch * 1.4, batch * 1.7) for _ in range(models))
    one = Ratio(1.0, 1.0, 1.0, 1.0, 1.0)
    return Timing(
        batch, 1, 40, 2.0, spreads, (one, *(Ratio(2.5, 2.4, 2.6, 2.2, 2.8) for _ in spreads[1:]))
    )


def _node(name: str, models: int, draw: random.Random) -> NodeTime:
    times = tuple(draw.uniform(1, 500) for _ in range(models))
    return NodeTime(name, ("Conv", *("QLinearConv" for _ in times[1:])), times)
