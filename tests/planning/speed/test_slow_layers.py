"""Tests of the layers that stay in float for speed."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import fx, nn

from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.recipe import Recipe
from qtool.planning.speed.slow_layers import WIN, Times
from qtool.planning.targets import Target, target
from tests.planning.planned import MINMAX, canonical

DEFAULT = target("onnxruntime")


def chain(channels: int, count: int = 4) -> nn.Sequential:
    layers = [nn.Conv2d(channels, channels, 3, padding=1, groups=channels) for _ in range(count)]
    steps = [step for layer in layers for step in (layer, nn.ReLU())]
    return nn.Sequential(*steps).eval()


def planned(
    model: nn.Module, *shape: int, recipe: Recipe | None = None, on: Target = DEFAULT
) -> QuantPlan:
    return make_plan(canonical(model, shape), on, MINMAX, recipe)


def convolutions(plan: QuantPlan) -> list[Execution]:
    return [d.execution for d in plan.nodes if d.op == "conv"]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_a_narrow_depthwise_chain_stays_in_float_on_stored_codes(batch: int) -> None:
    plan = planned(chain(16), batch, 16, 56, 56)
    assert convolutions(plan) == [Execution.WEIGHTS] * 4
    assert all("faster in float" in d.reason for d in plan.nodes if d.op == "conv")
    assert [p.name for p in plan.placed] == [f"{2 * i}.weight" for i in range(4)]


def test_a_wide_one_does_not() -> None:
    dense = nn.Sequential(*(nn.Conv2d(128, 128, 3, padding=1) for _ in range(3))).eval()
    assert convolutions(planned(dense, 2, 128, 28, 28)) == [Execution.INTEGER] * 3


def test_only_the_narrow_part_of_a_network_stays_in_float() -> None:
    model = nn.Sequential(
        chain(16, 60), nn.Conv2d(16, 256, 3, stride=4), *(nn.Conv2d(256, 256, 3) for _ in range(2))
    ).eval()
    kinds = convolutions(planned(model, 2, 16, 56, 56))
    assert kinds[:60] == [Execution.WEIGHTS] * 60
    assert kinds[-2:] == [Execution.INTEGER] * 2


def test_where_integers_win_as_they_are_nothing_changes() -> None:
    """Whatever could be gained in the narrow part."""
    wide = (nn.Conv2d(256, 256, 3) for _ in range(2))
    model = nn.Sequential(chain(16), nn.Conv2d(16, 256, 3, stride=4), *wide).eval()
    assert convolutions(planned(model, 2, 16, 56, 56)) == [Execution.INTEGER] * 7


def test_a_recipe_decides_otherwise_for_all_layers_or_for_one() -> None:
    everything = planned(chain(16), 2, 16, 56, 56, recipe=Recipe(slow_layers="integer"))
    assert convolutions(everything) == [Execution.INTEGER] * 4
    rule = Recipe.of([{"select": "2", "as": "static"}])
    kinds = convolutions(planned(chain(16), 2, 16, 56, 56, recipe=rule))
    assert kinds == [Execution.WEIGHTS, Execution.INTEGER, *[Execution.WEIGHTS] * 2]


def test_a_small_network_is_left_alone() -> None:
    assert convolutions(planned(chain(16), 2, 16, 8, 8)) == [Execution.INTEGER] * 4


@pytest.mark.parametrize("name", ["onnxruntime-arm", "openvino", "tensorrt", "tflite"])
def test_a_target_without_a_table_leaves_none_in_float_for_speed(name: str) -> None:
    plan = planned(chain(16), 2, 16, 56, 56, on=target(name))
    assert convolutions(plan) == [Execution.INTEGER] * 4


def network(rng: random.Random) -> Times:
    """Random times of a random graph of calls, some with several readers."""
    graph = fx.Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(rng.randint(3, 8)):
        sources = rng.sample(nodes, rng.randint(1, min(2, len(nodes))))
        nodes.append(graph.call_function(torch.cat, (sources,)))
    graph.output(nodes[-1])
    movable = [n for n in nodes[1:] if rng.random() < 0.8]
    times = {n: (rng.randint(1, 20), rng.randint(1, 20)) for n in movable}
    edges = {n: rng.randint(0, 8) for n in nodes if n.users}
    return Times(times, edges)


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_cheapest_of_all(seed: int) -> None:
    times = network(random.Random(seed))
    named = list(times.nodes)
    priced = replace(times, nodes={n: (f, WIN * i) for n, (f, i) in times.nodes.items()})
    every = itertools.product((False, True), repeat=len(named))
    costs = [priced.total(dict(zip(named, labels, strict=True))) for labels in every]
    assert priced.total(times.cheapest()) == pytest.approx(min(costs), abs=len(named))
