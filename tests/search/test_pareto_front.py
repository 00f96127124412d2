"""The front: exact where all is looked at, and the same where it is swept."""

from __future__ import annotations

import numpy as np
import pytest

import qtool
from qtool.search import pareto_front
from qtool.search.choices import observers_of, space_of
from qtool.search.cost_model import Additive, items_of
from qtool.search.pareto_front import front, hypervolume, undominated
from tests.search.nets import ladder


@pytest.fixture(scope="module")
def model() -> Additive:
    net, seen, _ = ladder()
    plan = qtool.capture_model(net, seen[0]).plan()
    captured = qtool.capture_model(net, seen[0])
    graph, _ = captured.for_target(plan.target)
    items = items_of(space_of(graph, plan, observers_of(plan), ("static", "int8-weights")))
    draw = np.random.default_rng(0)
    return Additive(
        items=items,
        errors=draw.uniform(0.1, 1, len(items.points)),
        times=-draw.uniform(1, 9, len(items.nodes)),
        float_time=100.0,
        edge=2.0,
        element=0.001,
        sizes=-draw.uniform(1, 9, len(items.wants_points)),
        float_size=1000.0,
        trust=np.ones(len(items.space.groups)),
    )


def test_a_plan_is_the_union_of_what_its_layers_need(model: Additive) -> None:
    space = model.items.space
    config = space.usual
    spread = model.items.spread(np.array([config]))
    there = (spread @ model.items.wants_points + model.items.fixed_points)[0] > 0
    names = {n for (n, _), t in zip(model.items.points, there, strict=True) if t}
    plan = space.plan(space.recipe)
    assert names == {p.name for p in plan.placed if p.kind.value != "bias"}


@pytest.mark.parametrize("by_size", [False, True])
def test_the_sweep_finds_the_convex_part_of_the_front(
    model: Additive, by_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = front(model, by_size)
    monkeypatch.setattr(pareto_front, "ALL", 0)
    swept = front(model, by_size)
    assert whole.exact
    assert not swept.exact
    cost, known = (f.size if by_size else f.time for f in (whole, swept))
    worst = float(cost.max()) + 1, float(whole.noise.max()) + 1
    best = hypervolume(cost, whole.noise, worst)
    assert hypervolume(known, swept.noise, worst) >= 0.99 * best
    for price in (0.1, 1.0, 10.0):  # no configuration has a lower sum
        assert np.min(known + price * swept.noise) == pytest.approx(
            np.min(cost + price * whole.noise)
        )


def test_all_float_is_no_plan_and_stands_on_no_front(model: Additive) -> None:
    known = front(model)
    assert not any(model.items.space.is_float(known.config(i)) for i in range(len(known.configs)))


def test_undominated_and_the_area_of_three_points() -> None:
    cost, noise = np.array([1.0, 2.0, 3.0, 2.5]), np.array([3.0, 2.0, 1.0, 2.5])
    assert list(undominated(cost, noise)) == [0, 1, 2]
    assert hypervolume(cost, noise, (4.0, 4.0)) == 1 + 2 + 3
