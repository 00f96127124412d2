"""The front: exact where all is looked at, and the same where it is swept."""

import numpy as np
import pytest

import qtool
from qtool.plugins.search import pareto_front as module
from qtool.plugins.search.choices import observers_of, search_space
from qtool.plugins.search.cost_model import CostModel, find_items
from qtool.plugins.search.pareto_front import non_dominated, pareto_front
from tests.plugins.search.nets import ladder


def hypervolume(cost: np.ndarray, noise: np.ndarray, worst: tuple[float, float]) -> float:
    """Return the area that points dominate, up to the reference point `worst`."""
    order = non_dominated(cost, noise)
    order = order[(cost[order] < worst[0]) & (noise[order] < worst[1])]
    ends = np.append(cost[order][1:], worst[0])
    return float(((ends - cost[order]) * (worst[1] - noise[order])).sum())


@pytest.fixture(scope="module")
def model() -> CostModel:
    net, seen, _ = ladder()
    plan = qtool.capture_model(net, seen[0]).plan("openvino")
    captured = qtool.capture_model(net, seen[0])
    graph, _ = captured.for_target(plan.target)
    items = find_items(search_space(graph, plan, observers_of(plan), ("static", "int8-weights")))
    draw = np.random.default_rng(0)
    return CostModel(
        items=items,
        errors=draw.uniform(0.1, 1, len(items.points)),
        times=-draw.uniform(1, 9, len(items.nodes)),
        float_time=100.0,
        boundary_us=2.0,
        boundary_element_us=0.001,
        sizes=-draw.uniform(1, 9, len(items.choice_points)),
        float_size=1000.0,
        error_scales=np.ones(len(items.space.groups)),
    )


def test_a_plan_is_the_union_of_what_its_layers_need(model: CostModel) -> None:
    space = model.items.space
    config = space.default_config
    spread = model.items.one_hot(np.array([config]))
    there = (spread @ model.items.choice_points + model.items.fixed_points)[0] > 0
    names = {n for (n, _), t in zip(model.items.points, there, strict=True) if t}
    plan = space.plan(space.recipe)
    assert names == {p.name for p in plan.placed if p.kind.value != "bias"}


@pytest.mark.parametrize("by_size", [False, True])
def test_the_sweep_finds_the_convex_part_of_the_front(
    model: CostModel, by_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pareto_front(model, by_size)
    monkeypatch.setattr(module, "EXHAUSTIVE_LIMIT", 0)
    swept = pareto_front(model, by_size)
    assert whole.exhaustive
    assert not swept.exhaustive
    cost, known = (f.size if by_size else f.time for f in (whole, swept))
    worst = float(cost.max()) + 1, float(whole.noise.max()) + 1
    best = hypervolume(cost, whole.noise, worst)
    assert hypervolume(known, swept.noise, worst) >= 0.99 * best
    for price in (0.1, 1.0, 10.0):  # no configuration has a lower sum
        assert np.min(known + price * swept.noise) == pytest.approx(
            np.min(cost + price * whole.noise)
        )


def test_all_float_is_no_plan_and_stands_on_no_front(model: CostModel) -> None:
    known = pareto_front(model)
    assert not any(model.items.space.is_float(known.config(i)) for i in range(len(known.configs)))
