"""What vision transformers and in-place updates of a part need: every code is equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.backends.tflite.file import load
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification import compare_delegate_codes
from qtool.core.errors import ExportError
from tests.needs import needs_litert


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


def images(count: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@needs_litert
@pytest.mark.parametrize("name", NETWORKS)
def test_every_code_is_equal(name: str, tmp_path: Path) -> None:
    network, path = NETWORKS[name].eval(), tmp_path / "model.tflite"
    model = qtool.quantize(network, [images()], target="tflite", accuracy="fast")
    result = model.export(path, timing=0)
    assert result is not None
    assert result.passed
    assert result.exactness is not None
    assert result.exactness.exact
    assert compare_delegate_codes(TfliteFile(path), [[images(5).numpy()]]).exact
    (written,) = TfliteFile(path).run([images(3).numpy()])  # another batch than the sample's
    with torch.no_grad():
        real = network(images(3)).numpy()
    assert abs(written - real).max() < 0.1 * abs(real).max()
    kinds = [op.name for op in load(path).operators]
    assert kinds.count("TILE") == (1 if name == "token" else 0)
    pieces = {"front": 1, "middle": 2, "behind": 1}.get(name, 0)
    kept = [t for t in load(path).tensors if t.name.endswith(".kept") or ".kept." in t.name]
    assert len(kept) == pieces


def test_a_part_with_gaps_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = qtool.quantize(Replaced(0, 6, 2).eval(), [images()], target="tflite", accuracy="fast")
    with pytest.raises(ExportError, match="replacing a strided slice"):
        model.export(tmp_path / "model.tflite")
