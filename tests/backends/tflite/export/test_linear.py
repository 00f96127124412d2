"""The outputs in float of a small last layer are written in parts, with finer codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import qtool
from qtool.backends.tflite import litert
from qtool.backends.tflite.file import load
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.planning.result_parts import PARTS
from tests.needs import needs_litert


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    ).eval()


def images(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


def kinds(path: Path) -> list[str]:
    return [op.name for op in load(path).operators]


@needs_litert
def test_outputs_have_less_error_than_their_int8_codes(tmp_path: Path) -> None:
    model, path = qtool.quantize(network(), [images(64)], target="tflite"), tmp_path / "m.tflite"
    result = model.export(path, timing=0)
    assert result is not None
    assert result.passed
    assert result.exactness is not None
    assert result.exactness.float_steps == 0
    assert kinds(path).count("FULLY_CONNECTED") == max(PARTS)
    x = images(32, 2)
    (written,) = TfliteFile(path).run([x.numpy()])
    with torch.no_grad():
        real, coded = network()(x).numpy(), model(x).numpy()
    assert np.square(written - real).mean() < np.square(coded - real).mean()
    rows = qtool.inspect(path).coverage.rows
    assert [r.op for r in rows if r.op in ("ADD", "FULLY_CONNECTED")] == ["FULLY_CONNECTED"]


@needs_litert
def test_values_beyond_the_calibrated_range_are_not_clipped(tmp_path: Path) -> None:
    """The parts cover more than the range of the plan."""
    model, path = qtool.quantize(network(), [images(64)], target="tflite"), tmp_path / "m.tflite"
    model.export(path, verify=False)
    x = 1.3 * images(256, 3)
    (written,) = TfliteFile(path).run([x.numpy()])
    with torch.no_grad():
        coded = model(x).numpy()
    low, high = coded.min(), coded.max()
    assert written.min() < low - 1e-3 or written.max() > high + 1e-3


def test_a_layer_of_zeros_is_whole(tmp_path: Path) -> None:
    """Its biases have units larger than the step of a part, so no part could begin in its place."""
    model, path = network(), tmp_path / "m.tflite"
    with torch.no_grad():
        model[-1].weight.zero_()
        model[-1].bias.zero_()
    quantized = qtool.quantize(model, [100 * images(64)], target="tflite")
    quantized.export(path, verify=litert.version() is not None, timing=0)
    assert kinds(path).count("FULLY_CONNECTED") == 1


def test_codes_at_the_interface_and_large_layers_are_whole(tmp_path: Path) -> None:
    model = qtool.quantize(network(), [images(64)], target="tflite")
    model.export(tmp_path / "codes.tflite", verify=False, interface="int8")
    assert kinds(tmp_path / "codes.tflite").count("FULLY_CONNECTED") == 1
    large = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    model = qtool.quantize(large, [torch.randn(64, 8)], target="tflite")
    model.export(tmp_path / "large.tflite", verify=False)
    assert kinds(tmp_path / "large.tflite").count("FULLY_CONNECTED") == 2
