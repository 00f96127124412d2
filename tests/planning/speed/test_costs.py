"""Costs of layers, and layers that are faster in float."""

import itertools
import random
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import fx, nn

import qtool
from qtool.core import graph as G
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.planner import make_plan
from qtool.planning.recipe import Recipe
from qtool.planning.speed.costs import Convolution, CostTable, convolution_of
from qtool.planning.speed.slow_layers import WIN, Times
from qtool.planning.targets import Target, target
from tests.planning.planned import MINMAX, canonical

TABLE = CostTable(
    measured="a runtime",
    in_float={"call": 100, "mac": 1, "result": 10, "input": 1000},
    in_integers={"call": 200, "mac": 0.5, "pixel": 2, "result": 3, "tap": 7},
    elementwise={"add": (1, 2)},
    call=5,
    boundary=50,
    boundary_element=0.5,
)


def sizes(layer: nn.Module, *shape: int) -> Convolution:
    graph = canonical(layer, shape)
    batch = G.captured_batch(graph)  # two for a batch of one
    (found,) = (s for n in graph.nodes if (s := convolution_of(n, batch)) is not None)
    return found


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_sizes_are_those_of_one_sample(batch: int) -> None:
    found = sizes(nn.Conv2d(6, 20, 3, stride=2, padding=1), batch, 6, 8, 12)
    assert found == Convolution(6, 20, groups=1, taps=9, pixels=4 * 6, read=8 * 12)


def test_the_channels_of_a_group_are_counted() -> None:
    found = sizes(nn.Conv1d(8, 16, 5, groups=4), 2, 8, 9)
    assert found == Convolution(2, 4, groups=4, taps=5, pixels=5, read=9)


def test_work_of_a_wide_convolution() -> None:
    wide = Convolution(5, 20, groups=1, taps=9, pixels=10, read=40)
    assert wide.float_work() == {"call": 1, "mac": 10 * 45 * 32, "result": 200, "input": 200}
    integers = {"call": 1, "mac": 10 * 48 * 32, "pixel": 10, "result": 200, "tap": 90}
    assert wide.integer_work() == integers
    in_float = 100 + 10 * 45 * 32 + 10 * 200 + 1000 * 200
    in_integers = 200 + 0.5 * 10 * 48 * 32 + 2 * 10 + 3 * 200 + 7 * 90
    assert TABLE.convolution(wide) == (in_float, in_integers)


def test_work_of_other_kinds() -> None:
    image = Convolution(3, 16, groups=1, taps=9, pixels=10, read=40)
    assert image.float_work() == {"call": 1, "image mac": 10 * 27 * 16, "result": 160}
    narrow = Convolution(16, 8, groups=1, taps=1, pixels=10, read=10)
    assert narrow.float_work() == {"call": 1, "narrow mac": 1280, "narrow term": 160}
    counted = {"call": 1, "narrow pixel": 10, "narrow term": 160, "result": 80, "tap": 0}
    assert narrow.integer_work() == counted


def test_work_of_a_depthwise_convolution() -> None:
    depthwise = Convolution(1, 1, groups=24, taps=9, pixels=10, read=10)
    in_float = {"call": 1, "depthwise result": 240, "depthwise tap": 10 * 32 * 9}
    assert depthwise.float_work() == in_float
    work = depthwise.integer_work()
    assert work["depthwise tap"] == 10 * 24 * 9
    assert work["depthwise pixel"] == work["depthwise rest"] == 90
    assert replace(depthwise, groups=32).integer_work()["depthwise rest"] == 0


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + x.flip(1)).exp()


def test_other_operators_cost_their_elements_and_unknown_ones_nothing() -> None:
    calls = [n for n in canonical(Sum(), (2, 3, 4)).nodes if n.op == "call_function"]
    costs = {n.target.__name__.split(".")[0]: TABLE.node(n, 2) for n in calls}
    assert costs == {"flip": (0, 0), "add": (5 + 12, 5 + 24), "exp": (0, 0)}
    assert TABLE.edge(calls[0], 2) == 50 + 0.5 * 12


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
        chain(16, 120), nn.Conv2d(16, 256, 3, stride=4), *(nn.Conv2d(256, 256, 3) for _ in range(2))
    ).eval()
    kinds = convolutions(planned(model, 2, 16, 56, 56))
    assert kinds[:120] == [Execution.WEIGHTS] * 120
    assert kinds[-2:] == [Execution.INTEGER] * 2


def test_where_integers_win_as_they_are_nothing_changes() -> None:
    """Whatever could be gained in the narrow part."""
    wide = (nn.Conv2d(256, 256, 3) for _ in range(2))
    model = nn.Sequential(chain(16), nn.Conv2d(16, 256, 3, stride=4), *wide).eval()
    assert convolutions(planned(model, 2, 16, 56, 56)) == [Execution.INTEGER] * 7


def image_network(stem: int, width: int, activation: nn.Module) -> nn.Module:
    wide = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
    first = nn.Conv2d(3, stem, 3, stride=2, padding=1)
    return nn.Sequential(first, activation, nn.Conv2d(stem, width, 3, stride=4), *wide).eval()


@pytest.mark.parametrize(
    ("stem", "width", "activation", "leaves"),
    [(16, 128, nn.Hardswish(), 1), (16, 192, nn.Hardswish(), 1), (16, 192, nn.ReLU(), 0),
     (32, 128, nn.ReLU(), 0), (16, 384, nn.Hardswish(), 0)],
)  # fmt: skip
def test_a_first_layer_leaves_alone_where_that_gains(
    stem: int, width: int, activation: nn.Module, leaves: int
) -> None:
    """Also by the hard-swish that a float kernel computes with its results."""
    kinds = convolutions(planned(image_network(stem, width, activation), 2, 3, 112, 112))
    assert kinds == [Execution.WEIGHTS] * leaves + [Execution.INTEGER] * (4 - leaves)


def test_a_rule_may_leave_any_step_of_a_hard_swish_in_float() -> None:
    model = image_network(16, 192, nn.Hardswish())
    captured = qtool.capture_model(model, torch.zeros(2, 3, 112, 112))
    integers = captured.plan(recipe={"slow_layers": "integer"}).nodes
    steps = [d.node for d in integers if d.op != "conv"]
    assert len(steps) > 3
    for step in steps:
        decision = captured.plan(recipe={"rules": [{"select": step, "as": "float"}]}).decision(step)
        assert decision is not None
        assert decision.execution is Execution.FLOAT


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
    """Random times of a random graph; some calls have several readers, some are always integers."""
    graph = fx.Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(rng.randint(3, 8)):
        sources = rng.sample(nodes, rng.randint(1, min(2, len(nodes))))
        nodes.append(graph.call_function(torch.cat, (sources,)))
    graph.output(nodes[-1])
    movable = [n for n in nodes[1:] if rng.random() < 0.8]
    times = {n: (rng.randint(1, 20), rng.randint(1, 20)) for n in movable}
    edges = {n: rng.randint(0, 8) for n in nodes if n.users}
    return Times(times, edges, frozenset(n for n in movable if rng.random() < 0.3))


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_cheapest_of_all(seed: int) -> None:
    times = network(random.Random(seed))
    named = list(times.nodes)
    priced = replace(times, nodes={n: (f, WIN * i) for n, (f, i) in times.nodes.items()})
    every = itertools.product(*((True,) if n in times.fixed else (False, True) for n in named))
    costs = [priced.total(dict(zip(named, labels, strict=True))) for labels in every]
    assert priced.total(times.cheapest()) == pytest.approx(min(costs), abs=len(named))


def widths(model: nn.Module, size: int = 28) -> list[int]:
    """The channels that the file stores for each depthwise layer; 0: its own."""
    recipe = Recipe(slow_layers="integer")
    plan = planned(model.eval(), 2, 16, size, size, recipe=recipe)
    deep = (d for d in plan.nodes if d.op == "conv" and d.node.endswith("deep"))
    return [d.channels for d in deep]


def separable(channels: int, results: int = 16) -> nn.Module:
    parts = {
        "wide": nn.Conv2d(16, channels, 1),
        "deep": nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
        "last": nn.Conv2d(channels, results, 1),
    }
    return nn.Sequential(OrderedDict(parts))


@pytest.mark.parametrize(("channels", "stored"), [(24, 32), (72, 80), (120, 128), (64, 0), (5, 16)])
def test_depthwise_layers_are_stored_with_channels_of_zeros(channels: int, stored: int) -> None:
    assert widths(separable(channels)) == [stored]


def test_zeros_that_cost_more_than_they_save_are_left_out() -> None:
    assert widths(separable(17, 2048)) == [0]


@pytest.mark.parametrize("name", ["onnxruntime-arm", "tflite"])
def test_no_zeros_where_no_table_says_that_they_pay(name: str) -> None:
    plan = planned(separable(24).eval(), 2, 16, 28, 28, on=target(name))
    assert not any(d.channels for d in plan.nodes)
