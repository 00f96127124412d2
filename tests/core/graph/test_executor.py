"""The executor: whole, partial and streamed runs give what calling the graph gives."""

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

import qtool
from qtool.conversion.quantized import Quantized
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.levels import execution_order, run_by_levels
from qtool.core.graph.node_calls import Values


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        h = torch.cat([self.body(h.relu()) + h, h], 1)[:, :8]
        return self.head(h.mean((2, 3)))


@functools.cache
def quantized() -> Quantized:
    torch.manual_seed(0)
    return qtool.quantize(Net().eval(), [batch()], accuracy="fast")


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def coded() -> FloatGraph:
    return replace(quantized().graph, module=quantized().module)


def executor() -> Executor:
    return Executor(coded(), {d.node: d.macs for d in quantized().plan.nodes})


def bound(x: torch.Tensor) -> Batch:
    return quantized().graph.call_of([x])


def test_a_run_that_is_the_only_one_keeps_no_rounded_weights() -> None:
    once, x = Executor(coded(), single_run=True), batch(1)
    with torch.no_grad():
        expected = quantized()(x)
    (output,) = once.outputs
    assert torch.equal(once.run(bound(x), once.points)[output], expected)
    assert executor().quantized_constants
    assert not once.quantized_constants


def test_all_points_on_is_the_quantized_network_and_none_the_float_one() -> None:
    run, x = executor(), batch(1)
    with torch.no_grad():
        expected, exact = quantized()(x), quantized().graph.module(x)
    (output,) = run.outputs
    assert torch.equal(run.run(bound(x), run.points)[output], expected)
    assert torch.equal(run.run(bound(x), frozenset())[output], exact)


def test_switching_a_point_computes_only_what_differs() -> None:
    run, x = executor(), batch(1)
    changed = frozenset({"body"})
    values = run.run(bound(x), run.points)
    new = run.rerun_changed(values, changed, run.points - changed)
    whole = run.run(bound(x), run.points - changed)
    assert torch.equal(new[run.outputs[0]], whole[run.outputs[0]])
    assert 0 < len(new) < len(run.calls)
    assert run.cost(changed) < run.cost()


def names() -> list[str]:
    return [n for n in executor().indices if n.endswith(".quant") or n in ("stem", "head")]


@pytest.mark.parametrize("points", ["all", "none"])
def test_a_stream_gives_the_values_of_a_whole_run(points: str) -> None:
    run, x = executor(), batch(2)
    on = run.points if points == "all" else frozenset()
    values = run.run(bound(x), on)
    found = dict(run.stream(bound(x), on, names()))
    assert found.keys() == set(names())
    assert all(torch.equal(v, values[run.indices[n]]) for n, v in found.items())


def test_a_stream_drops_what_nobody_reads_any_more() -> None:
    run = executor()
    alive: dict[str, weakref.ref[torch.Tensor]] = {}
    most = 0
    activations = [n for n in names() if "weight" not in n and "bias" not in n]
    for name, value in run.stream(bound(batch(3)), run.points, activations):
        alive[name] = weakref.ref(value)
        del value
        most = max(most, sum(r() is not None for r in alive.values()))
    assert most < len(alive)


def test_what_is_asked_of_the_inputs_is_given() -> None:
    found = dict(executor().stream(bound(batch(5)), frozenset(), ["x"]))
    assert torch.equal(found["x"], batch(5))


def test_what_is_stopped_at_comes_as_late_as_can_be() -> None:
    run, stops = executor(), {"stem", "body", "head"}
    numbers = {run.indices[name] for name in stops}
    assert execution_order(run.reads, set()) == sorted(run.calls)
    assert sorted(execution_order(run.reads, numbers)) == sorted(run.calls)
    seen: dict[str, list[bool]] = {}

    def visit(stops: list[int], values: Sequence[Sequence[Values]]) -> Mapping[int, torch.Tensor]:
        (number,) = stops
        seen[run.name_of(number)] = [network[0][number] is not None for network in values]
        return {}

    run_by_levels(run, [bound(batch(1))], dict.fromkeys(numbers, ()), visit)
    assert list(seen) == ["stem", "body", "head"]
    assert all(known == [True, False] for known in seen.values())


def test_what_is_held_is_the_most_of_a_stream() -> None:
    most = executor().live_elements()
    plane = 6 * 6
    assert 3 * 8 * plane <= most <= 4 * 8 * plane
