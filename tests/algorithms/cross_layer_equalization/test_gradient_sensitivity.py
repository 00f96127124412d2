"""What an error comes to: gains beside derivatives worked out by hand."""

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.cross_layer_equalization import gradient_sensitivity
from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import (
    Sensitivity,
    measure_sensitivity,
)
from qtool.core import graph as G


class Sum(nn.Module):
    """One output, so that the random sign does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def seen(x: torch.Tensor) -> tuple[G.FloatGraph, Sensitivity]:
    torch.manual_seed(0)
    graph = qtool.capture_model(Sum().eval(), torch.zeros(2, 3)).graph
    axes = {"up": 1, "relu": 1}
    names = [G.name_of(n) for n in graph.graph.nodes if n.op == "get_attr"]
    weights = {n: 0 for n in names if n.endswith("weight")}
    return graph, measure_sensitivity(graph.module, [(x,)], axes, weights)


def test_gains_are_squared_derivatives_over_the_power_of_the_output() -> None:
    x = torch.tensor([[0.5, -1.0, 2.0]])
    graph, found = seen(x)
    with torch.no_grad():
        y = float(graph.module(x))
    values = {n: p.detach().double() for n, p in graph.module.named_parameters()}
    up = x.double() @ values["up.weight"].T + values["up.bias"]
    hidden = up.clamp(min=0)
    assert torch.allclose(
        found.tensors["relu"].gain, values["down.weight"][0] ** 2 * (hidden[0] > 0) / y**2
    )
    assert torch.allclose(found.weights["down.weight"], hidden**2 / y**2)
    assert torch.allclose(found.tensors["up"].high, up[0], atol=1e-6)


def test_zeros_have_no_error() -> None:
    x = torch.tensor([[0.5, -1.0, 2.0]])
    _, found = seen(x)
    dead = found.tensors["relu"].high == 0
    assert dead.any()
    assert not found.tensors["relu"].gain[dead].any()


def test_the_mean_over_batches_and_the_extremes_of_all() -> None:
    graph, one = seen(torch.tensor([[0.5, -1.0, 2.0]]))
    _, other = seen(torch.tensor([[1.5, 1.0, -2.0]]))
    axes, inputs = {"relu": 1}, [torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([[1.5, 1.0, -2.0]])]
    both = measure_sensitivity(graph.module, [(x,) for x in inputs], axes, {}).tensors["relu"]
    first, second = one.tensors["relu"], other.tensors["relu"]
    assert torch.allclose(both.gain, (first.gain + second.gain) / 2)
    assert torch.equal(both.high, torch.maximum(first.high, second.high))
    assert torch.equal(both.low, torch.minimum(first.low, second.low))


def test_parameters_are_left_without_gradients() -> None:
    graph, _ = seen(torch.tensor([[0.5, -1.0, 2.0]]))
    assert all(p.grad is None for p in graph.module.parameters())


def test_rows_of_a_large_layer_count_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, end = nn.Linear(3, 8), nn.Linear(8, 1)
    for constant in (layer.weight, end.weight):
        constant.data.fill_(0.5)  # all rows do the same
    graph = qtool.capture_model(nn.Sequential(layer, end).eval(), torch.zeros(2, 3)).graph
    (name,) = [G.name_of(n) for n in graph.graph.nodes if n.op == "get_attr"][:1]
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    every = measure_sensitivity(graph.module, [(x,)], {}, {name: 0}).weights[name]
    monkeypatch.setattr(gradient_sensitivity, "MAX_WEIGHT_ELEMENTS", 12)
    some = measure_sensitivity(graph.module, [(x,)], {}, {name: 0}).weights[name]
    assert (every.shape, some.shape) == ((8, 3), (3, 3))
    assert torch.allclose(every.sum(0), some.sum(0))


@pytest.mark.parametrize("shape", [(5,), (7, 5), (4, 6, 5), (4, 5, 8, 8), (3, 5, 1, 7)])
@pytest.mark.parametrize("last", [True, False])
def test_channels_are_reduced_in_every_layout(shape: tuple[int, ...], last: bool) -> None:
    axis = 0 if len(shape) == 1 else 1
    values = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0)).float()
    if last:  # channels lie next to each other in memory
        values = values.movedim(axis, -1).contiguous().movedim(-1, axis)
    others = [d for d in range(len(shape)) if d != axis]
    for reduce in (torch.sum, torch.amin, torch.amax):
        exact = reduce(values, others) if others else values
        assert torch.equal(gradient_sensitivity._by_channel(reduce, values, axis), exact)
