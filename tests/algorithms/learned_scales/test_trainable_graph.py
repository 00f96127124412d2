"""What can be learned: it begins as the quantized network, has gradients, and goes back into it."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import qtool
from qtool.algorithms.acceptance import quantized_module
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.learned_scales.trainable_graph import TrainableGraph, _Rounded, make_trainable
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.quant_params import QuantParams
from qtool.core.types import UINT8
from qtool.planning.recipe import Recipe

FOUR_BITS = [{"op": "conv", "weights": "int4"}]


class Net(nn.Module):
    """Two names of one tensor, a layer that is used twice, and one that is used once."""

    def __init__(self) -> None:
        super().__init__()
        self.once, self.twice = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.once(x))
        return self.twice(nn.functional.max_pool2d(self.twice(h), 2)).flatten(1)


def images() -> torch.Tensor:
    return torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def solved(recipe: Any = None) -> ConversionState:
    torch.manual_seed(0)
    captured = qtool.capture_model(Net().eval(), images())
    calibration = qtool.calibrate(captured, [images()], recipe=recipe)
    plan = captured.plan(recipe=Recipe.of(recipe))
    return ConversionState.start(captured, plan, calibration).solved()


def begun(recipe: Any = None) -> tuple[ConversionState, TrainableGraph]:
    state = solved(recipe)
    return state, make_trainable(state)


def test_it_begins_as_the_quantized_network() -> None:
    for recipe in (None, FOUR_BITS):
        state, found = begun(recipe)
        with torch.no_grad():
            exact, other = quantized_module(state)(images()), found.module(images())
        flipped = (exact - other).abs() > 1e-6  # biases are not rounded while learning
        assert float(flipped.float().mean()) < 0.05
        with torch.no_grad():
            again = quantized_module(found.apply_to(state))(images())
        assert torch.equal(exact, again)


def test_shared_tensors_have_one_scale() -> None:
    state, found = begun()
    roots = {state.plan.root(p.name) for p in state.plan if p.name in found.scales}
    assert roots == set(found.scales)
    assert len(found.scales) < sum(p.kind.name == "ACTIVATION" for p in state.plan)


def test_codes_that_stand_for_a_clamp_reach_no_further() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6(), nn.Conv2d(8, 4, 3), nn.Flatten()).eval()
    captured = qtool.capture_model(net, images())
    calibration = qtool.calibrate(captured, [images()])
    state = ConversionState.start(captured, captured.plan(), calibration).solved()
    found = make_trainable(state)
    before = {n: p.scale for n, p in state.parameters.params.items() if n in found.scales}
    with torch.no_grad():
        for log in found.scales.values():
            log.fill_(1.0)
    after = found.apply_to(state).parameters.params
    (clamped,) = (n for n in found.scales if found.max_logs[n] < 1)
    assert 5.99 < float(after[clamped].scale) * 255 <= 6
    assert all(torch.equal(after[n].scale, before[n] * math.e) for n in before if n != clamped)
    found.module(images())[0].sum().backward()
    assert float(found.scales[clamped].grad) == 0


def test_an_input_on_the_grid_of_its_codes_keeps_its_scale() -> None:
    state, found = begun()
    assert "x" in found.scales
    assert state.parameters is not None
    assert state.calibration is not None
    params, fitting = state.parameters.params["x"], CalibrationSamples(16)
    fitting.update([params.round_trip(images())], split=True)
    calibration = replace(state.calibration, kept_samples=fitting)
    assert "x" not in make_trainable(replace(state, calibration=calibration)).scales


def test_weights_of_few_bits_that_one_layer_owns_are_learned() -> None:
    _, plain = begun()
    assert not plain.weights
    assert set(plain.biases) == {"once.bias"}
    _, found = begun(FOUR_BITS)
    assert set(found.weights) == {"once.weight"}
    assert set(found.biases) == {"once.bias"}


def test_all_that_is_learned_has_a_gradient() -> None:
    _, found = begun(FOUR_BITS)
    found.module(images()).square().sum().backward()
    for parameter in found.parameters:
        assert bool(parameter.grad.abs().sum() > 0)


def test_the_gradient_of_a_scale_is_that_of_the_rounded_value() -> None:
    """Inside (whole - steps), at the ends the end code; in float64 by hand."""
    params = QuantParams(UINT8, torch.tensor(0.1), torch.tensor(10))
    x = torch.tensor([-3.0, -0.26, 0.0, 0.53, 99.0])
    scale = torch.tensor(0.1, requires_grad=True)
    _Rounded.apply(x, scale, params).sum().backward()
    by_hand = [-10.0, -3 + 2.6, 0.0, 5 - 5.3, 245.0]
    assert scale.grad is not None
    assert abs(float(scale.grad) - sum(by_hand)) < 1e-4  # float32 of sums of hundreds


def test_scales_and_their_biases_move_together() -> None:
    state, found = begun(FOUR_BITS)
    with torch.no_grad():
        for log in found.scales.values():
            log += 0.5
    half, whole = found.apply_to(state, 0.5), found.apply_to(state)
    assert state.parameters is not None
    assert half.parameters is not None
    assert whole.parameters is not None
    for name in found.scales:
        old = state.parameters.params[name].scale
        assert torch.allclose(whole.parameters.params[name].scale, old * torch.tensor(0.5).exp())
        assert torch.allclose(half.parameters.params[name].scale, old * torch.tensor(0.25).exp())
    params = whole.parameters.params
    assert torch.equal(params["once.bias"].scale, params["x"].scale * params["once.weight"].scale)
