"""A quantized model with ranges spoiled on purpose, and its data."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import nn

import qtool
from qtool import QuantizedModel
from qtool.evaluation.layer_facts import layers_of
from qtool.planning.fake_quantize import quant_points

__all__ = ["Chain", "captured", "chain", "images", "spoil"]


class Chain(nn.Module):
    """Seven layers with weights of one size, an add and a concat."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1) for i in range(5))
        self.head = nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.conv[0](x))
        b = torch.relu(self.conv[1](a)) + a
        c = torch.relu(self.conv[2](b))
        d = torch.cat([self.conv[3](c), torch.relu(self.conv[4](c))], 1)
        return self.head(d.mean((2, 3)))


def images(count: int = 64) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def chain(spoiled: Mapping[str, float] | None = None) -> QuantizedModel:
    """Chain in int8 without recovery steps; `spoiled`: layers whose range is wrong by a factor."""
    quantized = qtool.convert(captured(), _calibrated(), sample=images(16), recover=[])
    for name, factor in (spoiled or {}).items():
        spoil(quantized, name, factor)
    return quantized


@cache
def captured() -> qtool.Captured:
    """Chain, with the same weights every time."""
    torch.manual_seed(0)
    return qtool.capture_model(Chain().eval(), images(16))


@cache
def _calibrated() -> qtool.Calibration:
    return qtool.calibrate(captured(), images().split(16))


def spoil(quantized: QuantizedModel, name: str, factor: float) -> None:
    """Makes the scale of a layer's result wrong by a factor."""
    layer = next(e for e in layers_of(quantized) if e.name == name)
    assert layer.output is not None
    worse = replace(
        quantized.parameters[layer.output], scale=quantized.parameters[layer.output].scale * factor
    )
    quantized.parameters[layer.output] = worse
    quant_points(quantized.module)[layer.output].set_params(worse)
