"""Layers on more than two dimensions, in the forms that need no reshape."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from qtool.api.conversion import quantize


class Heads(nn.Module):
    """A layer whose result is turned into heads, and two with an activation between."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.query(x).view(x.shape[0], x.shape[1], 4, 16).transpose(1, 2)
        x = self.down(nn.functional.silu(self.up(x)))
        means = x.view(x.shape[0], x.shape[1], 4, 16).mean(2).transpose(1, 2)
        return torch.matmul(heads.sin().sum(1), means)


@pytest.mark.parametrize("mode", ["weight-only-int4", "dynamic"])
def test_only_heads_are_reshaped(mode: str) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(2, 5, 64) for _ in range(2)]
    quantized = quantize(
        Heads().eval(), batches, mode=mode, dynamic={"x": {0: "batch", 1: "time"}}, recover=[]
    )
    found = Counter(n.op_type for n in quantized.to_onnx().graph.node)
    assert (found["Reshape"], found["Shape"]) == (2, 0), found
    assert quantized.verify().passed


def test_integer_gemms_stay_flat() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(2, 5, 64) for _ in range(2)]
    quantized = quantize(Heads().eval(), batches, dynamic={"x": {0: "batch", 1: "time"}})
    found = Counter(n.op_type for n in quantized.to_onnx().graph.node)
    assert found["Gemm"] == 3
    assert found["Reshape"] > 3
