"""Grids of tensors that meet are one where that costs little, and their own where it would cost."""

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool import QuantizedModel


class Joined(nn.Module):
    """Two layers that others read, too, and a chain of concats of their results."""

    def __init__(self, gain: float, clamped: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.reads, self.last = nn.Conv2d(6, 3, 1), nn.Conv2d(9, 3, 1)
        self.clamped = clamped
        with torch.no_grad():
            for layer in (self.b, self.c):
                for mine, first in zip(layer.parameters(), self.a.parameters(), strict=True):
                    mine.copy_(gain * first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.a(x)
        one = one.relu() if self.clamped else one
        first = torch.cat([one, self.b(x)], 1)
        second = torch.cat([first, self.c(x)], 1)
        found: torch.Tensor = self.last(second) + self.reads(first) + self.a(one)
        return found


def _quantized(gain: float, clamped: bool = False) -> QuantizedModel:
    torch.manual_seed(1)
    data = [torch.randn(8, 3, 5, 5) for _ in range(3)]
    return qtool.quantize(Joined(gain, clamped).eval(), data, accuracy="fast")


def _grids(found: QuantizedModel, *names: str) -> set[tuple[float, int]]:
    params = [found.parameters[n] for n in names]
    return {(float(p.scale), int(p.zero_point)) for p in params}


def test_nearly_alike_is_one_grid() -> None:
    found = _quantized(1.03)
    assert len(_grids(found, "a", "cat", "cat_2")) == 1


def test_a_much_narrower_input_keeps_its_grid() -> None:
    found = _quantized(3.0)
    assert len(_grids(found, "a", "cat")) == 2
    assert len(_grids(found, "cat", "cat_2")) == 1


def test_a_fused_clamp_keeps_its_zero() -> None:
    found = _quantized(1.03, clamped=True)
    assert int(found.parameters["relu"].zero_point) == 0
    assert int(found.parameters["cat"].zero_point) > 0


@pytest.mark.parametrize("gain", [1.03, 3.0])
def test_the_file_is_the_simulation(gain: float, tmp_path: Path) -> None:
    found = _quantized(gain).export(tmp_path / "m.onnx")
    assert found.exactness.exact


class Residual(nn.Module):
    """A stream and a branch that is added to it."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.branch, self.last = (nn.Conv2d(3, 3, 1) for _ in range(3))
        with torch.no_grad():
            for mine in self.branch.parameters():
                mine.mul_(gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = self.stem(x).relu()
        found: torch.Tensor = self.last((stream + self.branch(stream)).relu())
        return found


def _steps(gain: float) -> list[float]:
    torch.manual_seed(1)
    data = [torch.randn(8, 3, 5, 5) for _ in range(3)]
    found = qtool.quantize(Residual(gain).eval(), data, accuracy="fast")
    return [float(found.parameters[n].scale) for n in ("relu", "branch", "relu_2")]


def test_a_sum_of_about_alike_is_exact() -> None:
    one, *others = _steps(1.0)
    assert others == pytest.approx([one, one])


def test_a_small_branch_keeps_its_finer_step() -> None:
    stream, branch, _ = _steps(0.05)
    assert branch < stream / 4


class Dead(nn.Module):
    """A branch of zeros is added to a stream, which is joined with itself as it was."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dead, self.own = (nn.Conv2d(3, 4, 1) for _ in range(2))
        self.last = nn.Conv2d(8, 4, 1)
        self.dead.weight.data.zero_()
        self.dead.bias.data.fill_(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.own(x)
        found: torch.Tensor = self.last(torch.cat([own, own + self.dead(x).relu()], 1))
        return found


def test_a_tensor_of_zeros_has_no_say() -> None:
    """The scale 1 that stands for none is no width of a grid."""
    torch.manual_seed(1)
    data = [torch.randn(16, 3, 4, 4) for _ in range(2)]
    assert qtool.quantize(Dead().eval(), data, accuracy="fast").fidelity.worst > 30
