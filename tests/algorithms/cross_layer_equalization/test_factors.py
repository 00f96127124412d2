"""Factors: what makes the predicted noise smallest, within what clamps allow."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import qtool
from qtool.algorithms.cross_layer_equalization.channel_streams import find_streams
from qtool.algorithms.cross_layer_equalization.factors import (
    MARGIN,
    SHARP,
    Limits,
    NoiseGradient,
    factor_limits,
    solve_factors,
)
from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import measure_sensitivity
from qtool.algorithms.cross_layer_equalization.noise_model import Noise, noise_model, predict_noise
from qtool.algorithms.cross_layer_equalization.stream_walk import Bound, Channels, Streams
from qtool.core import graph as G
from qtool.planning.fake_quantize import insert_points, quant_points

WIDTHS = torch.tensor([1.0, 100.0, 0.1, 7.0])


def net(widths: torch.Tensor = WIDTHS, clamp: type[nn.Module] = nn.ReLU) -> nn.Module:
    """A channel's weights are multiplied by its width, and those that read it divided."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), clamp(), nn.Conv2d(4, 5, 1)).eval()
    with torch.no_grad():
        model[0].weight *= widths.reshape(-1, 1, 1, 1)
        model[0].bias *= widths
        model[2].weight /= widths.reshape(1, -1, 1, 1)
    return model


def batch(seed: int = 1) -> torch.Tensor:
    return torch.randn(16, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def noise(model: nn.Module) -> tuple[Noise, Streams]:
    captured = qtool.capture_model(model, batch())
    graph, plan = captured.graph, captured.plan()
    streams = find_streams(graph.module)
    axes = {n: c.axis for n, c in streams.tensors.items() if n != "input"}
    weights = [G.name_of(n) for n in graph.graph.nodes if n.op == "get_attr"]
    seen = measure_sensitivity(
        graph.module, [(batch(),)], axes, {n: 0 for n in weights if n.endswith("weight")}
    )
    return noise_model(graph.module, plan, streams, seen), streams


def test_channels_are_brought_to_one_width() -> None:
    found, streams = noise(net())
    factors = torch.exp2(solve_factors(found, factor_limits(streams, {})))
    of = factors[streams.tensors["1"].streams]
    plain, _ = noise(net(torch.ones(4)))
    start = torch.zeros(streams.count, dtype=torch.float64)
    best = predict_noise(found, factors.log2())
    assert float(best) < 1.05 * float(predict_noise(plain, start))
    assert float(best) < 1e-3 * float(predict_noise(found, start))
    assert torch.allclose((of / of[0]).log2(), WIDTHS.double().log2(), atol=1.5)


def test_the_prediction_is_what_quantization_costs() -> None:
    """Within 2 dB: errors are not quite as even and as independent as it takes them to be."""
    captured = qtool.capture_model(net(torch.ones(4)), batch())
    model = qtool.quantize(captured, [batch()], observer="minmax")
    rounded = insert_points(captured.graph.module, model.plan)
    for name, point in quant_points(rounded).items():
        if name not in ("input", "2"):  # the input and the output are nobody's choice
            point.set_params(model.parameters[name])
    with torch.no_grad():
        exact = captured.graph.module(batch())
        cost = float((exact - rounded(batch())).square().sum() / exact.square().sum())
    found, streams = noise(net(torch.ones(4)))
    free = found.tensors.streams.any(-1, keepdim=True)
    inner = replace(found, tensors=replace(found.tensors, gain=found.tensors.gain * free))
    guess = predict_noise(inner, torch.zeros(streams.count, dtype=torch.float64))
    assert float(guess) == pytest.approx(cost, rel=0.58)


class Grouped(nn.Module):
    """Rows of one layer read the same channels, those of the other read different ones."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1, groups=2)
        self.out = nn.Conv2d(4, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(torch.relu(self.two(torch.relu(self.one(x)))))
        return out


def test_the_slope_is_that_of_the_noise_with_norms() -> None:
    torch.manual_seed(0)
    found, streams = noise(Grouped().eval())
    assert found.tensors is not None
    assert {len(r.streams) for r in found.rows} == {1, 4}
    draw = torch.Generator().manual_seed(0)
    logs = torch.randn(streams.count, generator=draw, dtype=torch.float64).requires_grad_()
    smooth(found, logs).log().backward()
    assert logs.grad is not None
    slope = NoiseGradient(found)(logs.detach()) * torch.tensor(2.0).log()  # of powers of two
    assert torch.allclose(slope, logs.grad, rtol=1e-6, atol=1e-9)


def smooth(found: Noise, logs: torch.Tensor) -> torch.Tensor:
    """`predicted` with a norm in place of the largest."""
    factors, t = torch.exp2(logs), found.tensors
    assert t is not None
    ends = [
        (end.clamp(min=0) / factors[t.range_streams]).norm(SHARP, -1) for end in (t.high, -t.low)
    ]
    felt = (factors[t.streams].square() * t.gain).sum(-1)
    total = ((sum(ends) / t.levels) ** 2 / 12 * felt).sum()
    for r in found.rows:
        by = factors[r.streams]
        step = 2 * (r.size * by).norm(SHARP, -1) / r.levels
        total = total + (step**2 / 12 * (r.gain / by**2).sum(-1)).sum()
    return total


def test_it_does_not_matter_how_the_channels_were_scaled_before() -> None:
    one, streams = noise(net())
    other, _ = noise(net(torch.ones(4)))
    best = [
        float(predict_noise(n, solve_factors(n, factor_limits(streams, {})))) for n in (one, other)
    ]
    assert best[0] == pytest.approx(best[1], rel=0.1)


def test_pinned_streams_keep_their_factor() -> None:
    found, streams = noise(net())
    pinned = torch.ones(streams.count, dtype=torch.bool)
    limits = Limits(torch.full((streams.count,), -99.0, dtype=torch.float64), pinned)
    assert not solve_factors(found, limits).any()


def bounded(highest: list[float]) -> Limits:
    streams = Streams({"x": Channels(1, torch.arange(1, 5))}, (), (Bound("x", 6.0),), count=5)
    return factor_limits(streams, {"x": torch.tensor(highest, dtype=torch.float64)})


def test_a_channel_that_reached_the_bound_is_pinned() -> None:
    assert bounded([1.0, 6.0, 9.0, 5.9]).pinned.tolist() == [True, False, True, True, False]


def test_a_channel_below_the_bound_may_grow_up_to_it_with_room() -> None:
    lower = bounded([1.0, 6.0, 0.01, 5.9]).lower
    assert float(lower[1].exp2()) == pytest.approx(MARGIN / 6)
    assert float(lower[3].exp2()) == pytest.approx(0.01 * MARGIN / 6)
    assert float(lower[4]) == 0  # it may be made narrower, not wider


def test_without_extremes_a_bounded_tensor_is_pinned() -> None:
    streams = Streams({"x": Channels(1, torch.arange(3))}, (), (Bound("x", 6.0),), count=3)
    assert factor_limits(streams, {}).pinned.all()


def test_factors_are_on_a_grid_that_the_last_bits_of_gradients_do_not_reach() -> None:
    found, streams = noise(net())
    logs = solve_factors(found, factor_limits(streams, {}))
    assert torch.equal(logs * 16, (logs * 16).round())
