"""The plan as data: its digest, its table, and who shares with whom."""

import subprocess
import sys
from dataclasses import replace

import pytest

from qtool.core.types import (
    INT8_NARROW,
    UINT8,
    UINT16,
    Observed,
    ObserverSpec,
    Requantized,
    SharedWith,
)
from qtool.planning.plan import (
    Decision,
    Edge,
    Execution,
    Kind,
    Point,
    QuantPlan,
    Rewrite,
    describe_spec,
)
from qtool.planning.recipe import Recipe
from tests.planning.planned import network_plan

MINMAX = ObserverSpec("minmax")


SMALL = QuantPlan(
    "some-target",
    MINMAX,
    Recipe(),
    (
        Point("x", Kind.ACTIVATION, Observed(UINT8, MINMAX), (Edge("x", "conv"),)),
        Point("conv", Kind.ACTIVATION, Observed(UINT8, MINMAX), (Edge("conv", "pool"),)),
        Point("pool", Kind.ACTIVATION, SharedWith("conv"), (Edge("pool", "flat"),)),
        Point("flat", Kind.ACTIVATION, SharedWith("pool"), (Edge("flat", "(output)"),)),
    ),
    (
        Decision("conv", "conv", Execution.INTEGER, "", 100, ("x",), "conv"),
        Decision("pool", "max_pool", Execution.PASS, "", 0, ("conv",), "pool"),
        Decision("flat", "pass", Execution.PASS, "", 0, ("pool",), "flat"),
        Decision("sin", "sin", Execution.FLOAT, "no integer kernel"),
    ),
)


def test_prints_as_a_table() -> None:
    noted = replace(SMALL, rewrites=(Rewrite("pool_as_conv", 2, "it is faster"),))
    assert str(noted).splitlines() == [
        "target some-target",
        "node  op        runs as  output                    why",
        "conv  conv      integer  uint8 per tensor, minmax",
        "pool  max_pool  pass     as conv",
        "flat  pass      pass     as pool",
        "sin   sin       float    float                     no integer kernel",
        "rewritten 2x: pool_as_conv (it is faster)",
    ]


def test_lookups() -> None:
    assert SMALL.root("flat") == SMALL.root("conv") == "conv"
    assert [p.name for p in SMALL.observed()] == ["x", "conv"]
    assert "pool" in SMALL
    assert "sin" not in SMALL
    assert len(list(SMALL)) == 4
    assert SMALL.decision("nothing") is None
    with pytest.raises(KeyError):
        SMALL.point("nothing")


def _with_point(plan: QuantPlan, index: int, point: Point) -> QuantPlan:
    points = list(plan.points)
    points[index] = point
    return replace(plan, points=tuple(points))


def test_digest_tells_plans_apart() -> None:
    x = SMALL.points[0]
    others = [
        replace(SMALL, target="other"),
        replace(SMALL, points=SMALL.points[:-1]),
        _with_point(SMALL, 0, replace(x, spec=Observed(INT8_NARROW, MINMAX))),
        _with_point(SMALL, 0, replace(x, spec=Observed(UINT8, ObserverSpec("mse")))),
        _with_point(SMALL, 0, replace(x, edges=())),
        replace(
            SMALL, nodes=(replace(SMALL.nodes[0], execution=Execution.FLOAT), *SMALL.nodes[1:])
        ),
    ]
    digests = {p.digest for p in [SMALL, *others]}
    assert len(digests) == 1 + len(others)
    assert replace(SMALL, nodes=tuple(replace(d, macs=1) for d in SMALL.nodes)).digest in digests


def test_digest_is_the_same_in_every_process() -> None:
    code = "from tests.planning.planned import network_plan; print(network_plan('concat').digest)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == network_plan("concat").digest


def test_points_that_share_parameters_have_one_origin() -> None:
    twice = Point("twice", Kind.ACTIVATION, SharedWith("pool", 2.0), ())
    plan = replace(SMALL, points=(*SMALL.points, twice))
    assert plan.origin("flat") == plan.origin("conv") == ("conv", 1.0)
    assert plan.origin("twice") == ("conv", 2.0)


def test_points_stand_where_codes_are_read_or_requantized() -> None:
    unread = Point("unread", Kind.ACTIVATION, Observed(UINT8, MINMAX), ())
    wide = Point("wide", Kind.ACTIVATION, Requantized("seen", UINT16), (Edge("seen", "conv"),))
    seen = replace(unread, name="seen")
    plan = replace(SMALL, points=(unread, seen, wide))
    assert [p.name for p in plan.placed] == ["seen", "wide"]
    assert [p.tensor for p in plan] == ["unread", "seen", "seen"]
    assert plan.reads == {("seen", "conv"): "wide"}
    assert describe_spec(wide.spec) == "uint16, requantized from seen"
