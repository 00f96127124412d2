"""Smoothing: wide channels of a linear layer's input are moved into its weights."""

import dataclasses
import functools
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.algorithms.smooth_quant import smoothing_targets
from qtool.backends.onnx.file_info import FileInfo
from qtool.calibration.calibration import Calibration
from qtool.frontends.captured_model import Captured
from qtool.planning.plan import Execution
from tests.algorithms.restored import check_restored

WIDTH, WIDE = 24, 60.0


class Block(nn.Module):
    """Two layers that read one norm beside a residual add, a GELU before one, a norm for one."""

    def __init__(self, wide: float = WIDE) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 7)
        with torch.no_grad():
            self.norm.weight[3] = self.norm.weight[11] = wide
            self.last.weight[5] = wide
            self.up.bias[7] = wide  # behind the GELU
            for layer, channel in ((self.query, 3), (self.key, 11), (self.head, 5), (self.down, 7)):
                layer.weight[:, channel] /= wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h = h + torch.sigmoid(self.query(h)) * self.key(h)
        h = x + self.down(nn.functional.gelu(self.up(torch.tanh(h))))
        return self.head(self.last(h))


def batch(seed: int, samples: int = 16) -> torch.Tensor:
    return torch.randn(samples, 5, WIDTH, generator=torch.Generator().manual_seed(seed))


@functools.cache
def captured(wide: float = WIDE) -> Captured:
    torch.manual_seed(0)
    return qtool.capture_model(Block(wide).eval(), batch(0))


@functools.cache
def calibration(seed: int = 1) -> Calibration:
    return qtool.calibrate(captured(), [batch(seed)], accuracy="fast")


@functools.cache
def quantized(wide: float = WIDE, mode: str | None = None) -> QuantizedModel:
    return qtool.quantize(captured(wide), [batch(1)], mode=mode, accuracy="fast")


def sqnr(model: QuantizedModel, path: Path) -> float:
    """Of the exported file in ONNX Runtime, in dB, on new data."""
    model.export(path)
    x = batch(9)
    with torch.no_grad():
        exact = captured().graph.module(x).numpy()
    found = ort.InferenceSession(path).run(None, {"x": x.numpy()})[0]
    return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


@pytest.mark.parametrize(("samples", "smoothed"), [(4, False), (10, True)])
def test_too_few_rows_say_nothing_of_single_channels(samples: int, smoothed: bool) -> None:
    """Five rows a sample, up to 48 channels: a new row leaves the extremes of many behind."""
    found = qtool.quantize(captured(), [batch(1, samples)], accuracy="fast")
    assert any(change.step == "smooth-quant" for change in found.changes) == smoothed


def watched(model: Captured, mode: str | None = None) -> dict[str, set[str]]:
    graph, _ = model.for_target("onnxruntime")
    found = smoothing_targets(graph.graph, model.plan(mode=mode))
    return {w.source: set(w.readers) for w in found}


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_inputs_of_linear_layers_alone_are_watched(mode: str) -> None:
    found = watched(captured(), mode)
    assert set(found) == {"norm", "tanh", "gelu", "last"}
    assert len(found["norm"]) == 2  # through the flattening of each layer's input


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_smoothing_recovers_what_wide_channels_cost(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ["smooth-quant"]
    smooth = qtool.quantize(captured(), [batch(1)], mode=mode, recover=steps)
    better = sqnr(smooth, tmp_path / "smooth.onnx")
    monkeypatch.setattr("qtool.algorithms.smooth_quant.WORTH", float("inf"))
    plain = qtool.quantize(captured(), [batch(1)], mode=mode, recover=steps)
    assert not plain.plan.rewrites
    assert better > sqnr(plain, tmp_path / "plain.onnx") + 6  # a bit of resolution


def test_it_is_folded_into_a_norm_that_nobody_else_reads() -> None:
    plan = quantized().plan
    assert [(r.name, r.count) for r in plan.rewrites] == [("smooth-quant", 3)]
    made = {d.node: d.execution.value for d in plan.nodes if d.node.endswith(".smooth")}
    assert made == {"norm.smooth": "float", "gelu.smooth": "float"}
    ops = Counter(n.op_type for n in quantized().to_onnx().graph.node)
    assert ops["Mul"] == 1 + 2  # the model's own, and these


def test_the_captured_model_keeps_its_weights() -> None:
    x, before = batch(2), captured().graph.module(batch(2))
    quantized()
    assert torch.equal(captured().graph.module(x), before)
    with torch.no_grad():
        smoothed = quantized().graph.module(x)
    assert torch.allclose(smoothed, before, rtol=0, atol=1e-4)
    assert not torch.equal(
        quantized().graph.module.get_parameter("query.weight"),
        captured().graph.module.get_parameter("query.weight"),
    )


def test_channels_that_are_alike_are_left_alone() -> None:
    assert watched(captured(1.0)).keys() == {"norm", "tanh", "gelu", "last"}
    model = quantized(1.0)
    assert not model.plan.rewrites


def test_a_saved_or_merged_calibration_gives_the_same_model(tmp_path: Path) -> None:
    calibration().merge(calibration(2)).save(tmp_path / "merged.calib")
    merged = qtool.convert(captured(), tmp_path / "merged.calib")
    together = qtool.quantize(captured(), [batch(1), batch(2)], accuracy="fast")
    assert merged.plan == together.plan
    assert all(
        torch.equal(p.scale, merged.parameters[n].scale) for n, p in together.parameters.items()
    )


def test_a_channel_that_was_never_seen_is_not_blown_up() -> None:
    data = batch(1)
    net = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 3)).eval()
    data[..., 0], data[..., 1] = 0.0, 1000.0
    model = qtool.quantize(net, [data], accuracy="fast")
    factors = next(b for n, b in model.graph.module.named_buffers() if "smooth" in n)
    assert torch.isfinite(factors).all()
    assert float(factors.max() / factors.min()) < 1e6


class Tied(nn.Module):
    """One layer called twice: its weights cannot take on the channels of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.conv, self.last = nn.Conv1d(5, 5, 1), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(self.layer(torch.tanh(self.layer(self.norm(x))))))


def test_tied_weights_and_codes_are_not_watched() -> None:
    assert watched(qtool.capture_model(Tied().eval(), batch(0))) == {}


def test_a_layer_that_the_recipe_leaves_in_float_reads_the_tensor_as_it_was() -> None:
    recipe = [{"select": "key", "as": "float"}]
    model = qtool.convert(captured(), calibration(), recipe=recipe)
    assert {d.node: d.execution for d in model.plan.nodes}["key"] is Execution.FLOAT
    assert torch.equal(
        model.graph.module.get_parameter("key.weight"),
        captured().graph.module.get_parameter("key.weight"),
    )
    assert model.verify().passed


def test_a_calibration_without_channels_converts_without_smoothing() -> None:
    kept = {n: s for n, s in calibration().statistics.items() if not n.endswith(".channels")}
    model = qtool.convert(captured(), dataclasses.replace(calibration(), statistics=kept))
    assert not model.plan.rewrites


def test_a_file_brings_its_factors_back(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    check_restored(quantized(), captured(), batch(3), file)
    info = FileInfo.of(onnx.load(file))
    (change,) = info.changes
    assert (change.step, change.count) == ("smooth-quant", 3)
    assert change.arrays.keys() == {"norm", "gelu", "last"}


class Recurrent(nn.Module):
    """Wide inputs of which the weights are small, as training leaves them."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(WIDTH, 16, batch_first=True), nn.Linear(16, 7)
        with torch.no_grad():
            self.layer.weight_ih_l0.div_(self.spread())

    @staticmethod
    def spread() -> torch.Tensor:
        return torch.logspace(-4, 1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.layer(x)
        return self.head(y[:, -1])


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (nn.LSTM, "static"),
        (nn.GRU, "dynamic"),
    ],
)
def test_wide_channels_of_a_recurrent_layer(kind: type[nn.RNNBase], mode: str) -> None:
    """One scale for a row of weights is that of the channels that are nearly zero."""
    torch.manual_seed(0)
    model = Recurrent(kind).eval()
    data, x = ([batch(1, 32) * model.spread()], batch(9) * model.spread())
    decibels = {}
    for recover in ("smooth-quant", ""):
        found = qtool.quantize(model, data, mode=mode, recover=[recover] if recover else [])
        assert found.verify().passed
        assert any(c.step == "smooth-quant" for c in found.changes) == (recover == "smooth-quant")
        with torch.no_grad():
            exact, noise = model(x), model(x) - found(x)
        decibels[recover] = float(10 * (exact.square().sum() / noise.square().sum()).log10())
    assert decibels["smooth-quant"] > 30
    assert decibels["smooth-quant"] > decibels[""] + 10
