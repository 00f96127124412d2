"""Linear layers and moves in .tflite files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import ExportError
from qtool.planning.result_parts import PARTS
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.file import load
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification import compare_delegate_codes
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
    model = qtool.quantize(network(), [images(64)], target="tflite", accuracy="fast")
    path = tmp_path / "m.tflite"
    result = model.export(path, timing=0)
    assert result.passed
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
    model = qtool.quantize(network(), [images(64)], target="tflite", accuracy="fast")
    path = tmp_path / "m.tflite"
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
    quantized = qtool.quantize(model, [100 * images(64)], target="tflite", accuracy="fast")
    quantized.export(path, verify=litert.version() is not None, timing=0)
    assert kinds(path).count("FULLY_CONNECTED") == 1


def test_codes_at_the_interface_and_large_layers_are_whole(tmp_path: Path) -> None:
    model = qtool.quantize(network(), [images(64)], target="tflite", accuracy="fast")
    model.export(tmp_path / "codes.tflite", verify=False, interface="int8")
    assert kinds(tmp_path / "codes.tflite").count("FULLY_CONNECTED") == 1
    large = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
    model = qtool.quantize(large, [torch.randn(64, 8)], target="tflite", accuracy="fast")
    model.export(tmp_path / "large.tflite", verify=False)
    assert kinds(tmp_path / "large.tflite").count("FULLY_CONNECTED") == 2


class ClassToken(nn.Module):
    """A stored token in front of the patches of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        joined = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1)
        scores: torch.Tensor = self.head(joined)
        return scores


class Replaced(nn.Module):
    """Channels from `start` to `end` are replaced, as torch captures an update in place."""

    def __init__(self, start: int, end: int, step: int = 1) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)
        self.range = slice(start, end, step)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).clone()
        x[:, self.range] = x[:, self.range] * 2.0 + 1.0
        scores: torch.Tensor = self.last(x)
        return scores


class Views(nn.Module):
    """Codes that are read as they are and transposed: by one product, or in float."""

    def __init__(self, product: bool) -> None:
        super().__init__()
        self.layer, self.product = nn.Conv2d(3, 8, 4, 4), product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x).flatten(2)
        other = x.transpose(1, 2)
        if self.product:
            return x @ other
        return torch.cat([torch.exp(x).mean(2), torch.exp(other).mean(2)], 1)


NETWORKS = {
    "product of views": Views(product=True),
    "views in float": Views(product=False),
    "token": ClassToken(),
    "front": Replaced(0, 2),
    "middle": Replaced(1, 4),
    "behind": Replaced(3, 6),
    "all": Replaced(0, 6),
}


def small_images(count: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@needs_litert
@pytest.mark.parametrize("name", NETWORKS)
def test_every_code_is_equal(name: str, tmp_path: Path) -> None:
    network, path = NETWORKS[name].eval(), tmp_path / "model.tflite"
    model = qtool.quantize(network, [small_images()], target="tflite", accuracy="fast")
    result = model.export(path, timing=0)
    assert result.passed
    assert result.exactness.exact
    assert compare_delegate_codes(TfliteFile(path), [[small_images(5).numpy()]]).exact
    (written,) = TfliteFile(path).run([small_images(3).numpy()])  # another batch than the sample's
    with torch.no_grad():
        real = network(small_images(3)).numpy()
    assert abs(written - real).max() < 0.1 * abs(real).max()
    kinds = [op.name for op in load(path).operators]
    assert kinds.count("TILE") == (1 if name == "token" else 0)
    pieces = {"front": 1, "middle": 2, "behind": 1}.get(name, 0)
    kept = [t for t in load(path).tensors if t.name.endswith(".kept") or ".kept." in t.name]
    assert len(kept) == pieces


def test_a_part_with_gaps_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = qtool.quantize(
        Replaced(0, 6, 2).eval(), [small_images()], target="tflite", accuracy="fast"
    )
    with pytest.raises(ExportError, match="replacing a strided slice"):
        model.export(tmp_path / "model.tflite")
