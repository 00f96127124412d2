"""Solved parameters: bias scales, and values that other tools divide by zero on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qtool import QuantizedModel, observers
from qtool.api.conversion import calibrate, quantize
from qtool.calibration.calibration import Calibration
from qtool.calibration.solve_parameters import BIAS_LIMIT, Parameters, solve_parameters
from qtool.core.errors import CalibrationError
from qtool.core.types import INT32, UINT8, Derived
from qtool.frontends.captured_model import Captured, capture_model
from tests.backends.onnx.export.networks import NETWORKS, network, quantized, run, samples

Edit = Callable[[nn.Sequential], None]


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_bias_scale_is_the_float32_product(name: str) -> None:
    found = quantized(name)
    biases = [p for p in found.plan if isinstance(p.spec, Derived)]
    for point in biases:
        data, weight = found.parameters[point.spec.input], found.parameters[point.spec.weight]
        bias = found.parameters[point.name]
        product = np.float32(data.scale.numpy()) * weight.scale.numpy()
        assert product.dtype == np.float32
        assert np.array_equal(bias.scale.numpy(), product)
        assert bias.qtype is INT32
        assert (bias.axis, bias.zero_point.any().item()) == (0, False)
    assert biases


@pytest.mark.parametrize("name", ["max_pool", "padded_shortcut", "concat", "linear_3d"])
def test_points_that_share_have_one_scale(name: str) -> None:
    found = quantized(name)
    shared = [p.name for p in found.plan if found.plan.root(p.name) != p.name]
    for point in shared:
        root = found.parameters[found.plan.root(point)]
        assert torch.equal(found.parameters[point].scale, root.scale)
        assert torch.equal(found.parameters[point].zero_point, root.zero_point)
    assert shared


def test_relu_puts_the_zero_point_at_the_lowest_code() -> None:
    params = quantized("residual").parameters
    assert {n: int(params[n].zero_point) for n in ("relu", "relu_2")} == {"relu": 0, "relu_2": 0}
    assert 0 < int(params["x"].zero_point) < 255


# --- hard values ---------------------------------------------------------------------------------


def net() -> nn.Sequential:
    layers = (nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(64, 3)).eval()


WEIGHTED = (0, 2, 4)


def dead_channels(bias: float) -> Edit:
    def edit(model: nn.Sequential) -> None:
        for i in WEIGHTED:
            model[i].weight[1] = 0
            model[i].bias[1] = bias

    return edit


def scaled(factor: float, layers: tuple[int, ...] = WEIGHTED, bias: float = 1) -> Edit:
    def edit(model: nn.Sequential) -> None:
        for i in layers:
            model[i].weight.mul_(factor)
            model[i].bias.mul_(bias)

    return edit


def one_channel(factor: float) -> Edit:
    def edit(model: nn.Sequential) -> None:
        model[0].weight[0].mul_(factor)

    return edit


def unchanged(model: nn.Sequential) -> None:
    pass


def noise(size: float = 1.0) -> torch.Tensor:
    return torch.randn(16, 4, 4, 4) * size


HARD: dict[str, tuple[Edit, torch.Tensor | float]] = {
    "dead channels with an overflowing bias": (dead_channels(-1e10), 1.0),
    "zero weights and biases": (scaled(0, bias=0), 1.0),
    "zero activations": (unchanged, 0.0),
    "constant activations": (unchanged, torch.full((16, 4, 4, 4), 3.0)),
    "huge activations": (unchanged, 1e30),
    "tiny activations": (unchanged, 1e-30),
    "huge weights": (scaled(1e30, (0,), 1e30), 1.0),
    "tiny weights": (scaled(1e-30), 1.0),
    "one huge channel": (one_channel(1e10), 1.0),
    "tiny activations, huge weights": (scaled(1e10), 1e-30),
}


def assert_usable(found: QuantizedModel) -> None:
    """Every scale positive, finite and no subnormal; every zero point a code."""
    for name, params in found.parameters.items():
        scale, zero = params.scale, params.zero_point
        assert bool((scale >= torch.finfo(torch.float32).tiny).all()), name
        assert bool(scale.isfinite().all()), name
        assert bool(((zero >= params.qtype.qmin) & (zero <= params.qtype.qmax)).all()), name


@pytest.mark.parametrize(("edit", "data"), HARD.values(), ids=HARD.keys())
def test_hard_values_convert_and_run(
    edit: Edit, data: torch.Tensor | float, tmp_path: Path
) -> None:
    model = net()
    with torch.no_grad():
        edit(model)
    x = data if isinstance(data, torch.Tensor) else noise(data)
    found = quantize(model, [x, x], accuracy="fast")
    assert_usable(found)
    found.export(tmp_path / "model.onnx")  # raises unless verified
    (out,) = run((tmp_path / "model.onnx").read_bytes(), (x,))
    expected = model(x).detach().double().numpy()
    assert np.isfinite(out).all()
    size = max(np.ptp(expected), np.abs(expected).max())
    # Three layers of 8 bits on random weights: about 1 % of the range, here at most 1.5 %.
    assert np.abs(out.astype(np.float64) - expected).max() <= 0.03 * size


def test_usable_sees_a_bad_scale() -> None:
    found = quantize(net(), [noise()], accuracy="fast")
    assert_usable(found)
    for bad in (0.0, torch.inf, torch.nan, 1e-40):
        found.parameters["input"] = dataclasses.replace(
            found.parameters["input"], scale=torch.tensor(bad)
        )
        with pytest.raises(AssertionError):
            assert_usable(found)


def test_a_widened_scale_is_noted_and_holds_the_bias() -> None:
    model = net()
    with torch.no_grad():
        model[0].weight[2].mul_(1e-12)
        model[0].bias[2] = 7.0
    found = quantize(model, [noise()], accuracy="fast", target="onnxruntime-x86-vnni")
    _few, note = found.notes
    assert note.startswith("0.weight: scale widened in 1 of 6 channels")
    scale = found.parameters["0.bias"].scale.double()
    codes = model[0].bias.detach().double() / scale
    assert codes.abs().max() <= BIAS_LIMIT
    assert codes[2] > BIAS_LIMIT * 0.999  # and is not widened more than it has to be
    kept = found.parameters["0.weight"].scale[[0, 1, 3, 4, 5]]
    weights = model[0].weight.detach()[[0, 1, 3, 4, 5]].flatten(1).abs().amax(1)
    torch.testing.assert_close(kept, weights / 127)


def test_nothing_is_noted_of_an_ordinary_model() -> None:
    assert all(quantized(name).notes == () for name in NETWORKS)


# --- calibrations that do not fit ----------------------------------------------------------------


def captured() -> tuple[Captured, Calibration]:
    model = capture_model(network("linear"), samples("linear", 4))
    return model, calibrate(model, [samples("linear", 4)])


def solve(model: Captured, calibration: Calibration) -> Parameters:
    graph, _ = model.for_target("onnxruntime")
    return solve_parameters(graph.module, model.plan(), calibration)


def test_a_calibration_that_lacks_a_tensor_is_refused() -> None:
    model, calibration = captured()
    assert solve(model, calibration).params["input"].qtype is UINT8
    fewer = {k: v for k, v in calibration.statistics.items() if k != "1"}
    with pytest.raises(CalibrationError, match=r"lacks .1.*calibrate again"):
        solve(model, dataclasses.replace(calibration, statistics=fewer))


def test_a_tensor_without_values_is_refused() -> None:
    model, calibration = captured()
    empty = observers.create(calibration.observer, None)
    statistics = {**calibration.statistics, "1": empty}
    with pytest.raises(CalibrationError, match="saw no values of tensor '1'"):
        solve(model, dataclasses.replace(calibration, statistics=statistics))


def notes_of(scale: float, zero_channel: bool = False, data: float = 1.0) -> str:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(4, 2, 1, bias=False))
    with torch.no_grad():
        net[0].weight *= scale
        if zero_channel:
            net[0].weight[1] = 0
    images = data * torch.randn(4, 3, 5, 5)
    few, *others = quantize(net.eval(), [images], accuracy="fast").notes
    assert few.startswith("calibrated on 4 samples")
    return "\n".join(others)


def test_an_ordinary_network_has_nothing_strange() -> None:
    assert notes_of(1) == ""


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        ({"scale": 1e-30}, "0.weight: values so small in 4 of 4 channels"),
        ({"scale": 1e-20}, "0: values so small that a scale of 2^-60"),
        ({"scale": 1, "data": 1e-30}, "input: values so small that"),
        ({"scale": 1, "zero_channel": True}, "0.weight: weights are zero in 1 of 4 channels"),
        ({"scale": 1, "data": 0.0}, "input: on the calibration data it is zero"),
    ],
)
def test_what_no_scale_can_hold_is_a_note(strange: dict[str, Any], said: str) -> None:
    assert said in notes_of(**strange)


def test_a_clamp_that_saw_nothing_has_the_codes_of_what_it_lets_through(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6()).eval()
    net[0].weight.data.abs_()
    net[0].bias.data.fill_(-1.0)
    model = quantize(net, [-torch.rand(4, 3, 5, 5)], accuracy="fast")
    assert any("on the calibration data it is zero" in note for note in model.notes)
    assert float(model.parameters["1"].scale) == pytest.approx(6 / 255)
    assert int(model.parameters["1"].zero_point) == 0
    assert model.export(tmp_path / "model.onnx").coverage.share == 1
