"""Equalization: a network with unbalanced channels converts as well as its balanced twin."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.algorithms.cross_layer_equalization import equalization
from qtool.algorithms.cross_layer_equalization.gradient_sensitivity import Sensitivity
from qtool.algorithms.cross_layer_equalization.noise_model import Noise, noise_model
from qtool.api.quantized_model import QuantizedModel
from qtool.backends.onnx.file_info import FileInfo
from qtool.frontends.captured_model import Captured
from qtool.frontends.onnx.onnx_file import load_onnx
from tests.algorithms.restored import check_restored

CHANNELS, SPREAD = 8, 2.5
STEPS = ("cross-layer-equalization", "smooth-quant")


class Net(nn.Module):
    """A residual sum, a depthwise layer, a concat, a ReLU6 and a pool."""

    def __init__(self, unbalanced: bool) -> None:
        super().__init__()
        c = CHANNELS
        self.stem, self.one, self.two = nn.Conv2d(3, c, 3), nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.depth, self.wide = nn.Conv2d(c, c, 3, groups=c), nn.Conv2d(2 * c, c, 1)
        self.head = nn.Linear(c, 5)
        if unbalanced:
            with torch.no_grad():
                self._rescale()

    def _rescale(self) -> None:
        generator = torch.Generator().manual_seed(7)

        def factors(low: float = -SPREAD, high: float = SPREAD) -> torch.Tensor:
            return torch.empty(CHANNELS).uniform_(low, high, generator=generator).exp()

        residual, inner = factors(), factors()
        for layer in (self.stem, self.two):
            layer.weight *= residual.reshape(-1, 1, 1, 1)
            layer.bias *= residual
        self.one.weight *= inner.reshape(-1, 1, 1, 1) / residual.reshape(1, -1, 1, 1)
        self.one.bias *= inner
        self.two.weight /= inner.reshape(1, -1, 1, 1)
        self.depth.weight /= residual.reshape(-1, 1, 1, 1)
        both = torch.cat([residual, torch.ones(CHANNELS)])
        self.wide.weight /= both.reshape(1, -1, 1, 1)
        narrow = factors(high=-1.0)  # under the bound of the clamp
        self.wide.weight *= narrow.reshape(-1, 1, 1, 1)
        self.wide.bias *= narrow
        self.head.weight /= narrow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.two(F.relu(self.one(x))))
        x = torch.cat([x[:, :, 1:-1, 1:-1], F.relu(self.depth(x))], 1)
        return self.head(F.relu6(self.wide(x)).mean((2, 3)))


def batch(seed: int, samples: int = 64) -> torch.Tensor:
    return torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@functools.cache
def captured(unbalanced: bool = True) -> Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Net(unbalanced).eval(), batch(0, 4))


@functools.cache
def quantized(unbalanced: bool = True) -> QuantizedModel:
    return qtool.quantize(captured(unbalanced), batch(1, 256).split(32), recover=STEPS)


def steps(model: QuantizedModel) -> list[str]:
    return [c.step for c in model.changes]


def sqnr(model: QuantizedModel, path: Path) -> float:
    """Of the exported file in ONNX Runtime, in dB, on new data."""
    model.export(path)
    x = batch(9, 256)
    with torch.no_grad():
        exact = captured().graph.module(x).numpy()
    session = ort.InferenceSession(path)
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


def test_the_twin_computes_what_the_network_does() -> None:
    with torch.no_grad():
        one, other = (captured(u).graph.module(batch(9)) for u in (False, True))
    assert torch.allclose(one, other, rtol=0, atol=1e-4)


def test_unbalanced_channels_cost_half_a_decibel_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sqnr(quantized(), tmp_path / "found.onnx")
    balanced = sqnr(quantized(False), tmp_path / "balanced.onnx")
    monkeypatch.setattr("qtool.algorithms.cross_layer_equalization.equalization.FEWEST", 10**6)
    data = batch(1, 256).split(32)
    plain = sqnr(qtool.quantize(captured(), data, recover=STEPS), tmp_path / "plain.onnx")
    assert found > balanced - 0.5
    assert plain < balanced - 4


def test_the_float_function_is_kept_and_the_captured_model_untouched() -> None:
    x, before = batch(2), captured().graph.module(batch(2))
    model = quantized()
    assert torch.equal(captured().graph.module(x), before)
    with torch.no_grad():
        after = model.graph.module(x)
    assert torch.allclose(after, before, rtol=0, atol=1e-4)
    assert not torch.equal(
        model.graph.module.get_parameter("stem.weight"),
        captured().graph.module.get_parameter("stem.weight"),
    )


def test_a_file_brings_its_factors_back(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    x = batch(3)
    found = check_restored(quantized(), captured(), x, file)
    info = FileInfo.of(onnx.load(file))
    (change,) = info.changes
    assert change.step == "cross-layer-equalization"
    assert all((f > 0).all() and (f != 1).any() for f in change.arrays.values())
    with torch.no_grad():
        assert torch.allclose(found.graph.module(x), quantized().graph.module(x), atol=1e-6)


def test_what_makes_it_worse_on_the_samples_kept_aside_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = equalization.solve_factors

    def wrong(*args: object) -> torch.Tensor:
        return -real(*args)  # the narrow narrower, the wide wider

    monkeypatch.setattr(equalization, "solve_factors", wrong)
    monkeypatch.setattr(equalization, "WORTH", float("inf"))
    assert steps(qtool.quantize(captured(), batch(1, 256).split(32), recover=STEPS)) == []


def test_few_samples_tell_nothing() -> None:
    for count, taken in (
        (equalization.FEWEST - 1, []),
        (equalization.FEWEST, ["cross-layer-equalization"]),
    ):
        model = qtool.quantize(captured(), [batch(1, count)], recover=STEPS)
        assert steps(model) == taken


def test_the_same_data_in_other_batches_and_another_order_gives_the_same_factors(
    tmp_path: Path,
) -> None:
    parts = batch(1, 256).split(32)
    one = qtool.calibrate(captured(), parts[4:], recover=STEPS)
    one.merge(qtool.calibrate(captured(), parts[:4], recover=STEPS)).save(tmp_path / "merged.calib")
    merged = qtool.convert(captured(), tmp_path / "merged.calib")
    (first,), (second,) = merged.changes, quantized().changes
    assert first.arrays.keys() == second.arrays.keys()
    assert all(torch.equal(f, second.arrays[n]) for n, f in first.arrays.items())


def test_layers_in_front_of_a_part_of_a_file_are_not_measured(tmp_path: Path) -> None:
    """No gradient passes the norm, which is kept from the file; `side` gives a part of one."""
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["" : 23]>
        g (float[N,3,8,8] x) => (float[N,8,8,8] y) {
            front = Conv (x, w1) front_relu = Relu (front)
            inner = Conv (front_relu, w2)
            norm = RMSNormalization (inner, g)
            behind = Conv (norm, w3) behind_relu = Relu (behind)
            main = Conv (behind_relu, w4)
            side = Conv (front_relu, w5)
            y = Add (main, side)
        }"""
    )
    random = np.random.default_rng(0)
    widths = 4.0 ** np.arange(-4, 4)
    for name, inputs in (("w1", 3), ("w2", 8), ("w3", 8), ("w4", 8), ("w5", 8)):
        weight = random.normal(size=(8, inputs, 1, 1))
        if name in ("w1", "w3"):
            weight *= widths.reshape(-1, 1, 1, 1)
        elif inputs == 8:
            weight /= widths.reshape(1, -1, 1, 1)
        array = weight.astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    ones = onnx.numpy_helper.from_array(np.ones(8, np.float32), "g")
    model.graph.initializer.append(ones)
    onnx.save(model, tmp_path / "net.onnx")
    names = ["cross-layer-equalization", "gptq"]
    made = qtool.quantize(load_onnx(tmp_path / "net.onnx"), batch(1, 128).split(32), recover=names)
    (change,) = (c for c in made.changes if c.step == "cross-layer-equalization")
    assert change.arrays.keys() & {"behind", "behind_relu"}
    assert not change.arrays.keys() & {"front", "front_relu", "inner"}


def test_where_every_channel_is_pinned_nothing_happens() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Sigmoid(), nn.Conv2d(8, 4, 1)).eval()
    assert steps(qtool.quantize(net, [batch(1)], recover=STEPS)) == []


def test_statistics_that_later_steps_wanted_are_of_the_tensor_as_it_is_now() -> None:
    """Smoothing watches what linear layers read; equalization has been there before it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        net[0].weight[3] *= 50
        net[2].weight[:, 3] /= 50
    data = torch.randn(256, 6)
    model = qtool.quantize(net, data.split(32), recover=STEPS)
    assert steps(model) == ["cross-layer-equalization"]
    assert model.verify().passed


def test_a_clamp_whose_second_dimension_is_the_batch() -> None:
    """It has no channels there: the extremes of two batches have other lengths."""

    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            positions = self.first(x).transpose(0, 1).clamp(0, 1)
            return self.second(positions.transpose(0, 1))

    data = [torch.randn(n, 5, 4) for n in (3, 1)]
    qtool.quantize(Clamped().eval(), data, recover=["cross-layer-equalization"])


def test_a_rare_sample_counts_for_the_predicted_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sensitivity] = []

    def spy(*arguments: Any) -> Noise:
        seen.append(arguments[3])
        return noise_model(*arguments)

    monkeypatch.setattr(equalization, "noise_model", spy)
    monkeypatch.setattr(equalization, "BACKWARD_SAMPLES", 16)
    batches = [batch(1, 39), 9 * batch(5, 1)]  # too few to hold some out
    qtool.quantize(captured(), batches, recover=STEPS)
    torch.manual_seed(0)
    values = F.relu(Net(unbalanced=True).stem(torch.cat(batches)))
    assert torch.allclose(seen[0].tensors["relu"].high.float(), values.amax((0, 2, 3)))
