"""Recurrent cells become linear layers, and are counted as such."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from tests.passes.differential import rewritten


class Steps(nn.Module):
    """A cell in a loop."""

    def __init__(self, cell: nn.Module, pair: bool = False) -> None:
        super().__init__()
        self.cell, self.pair = cell, pair

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], 6) + 0.1
        for t in range(3):
            if self.pair:
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
        return torch.cat([h, c], 1)


CELLS = [
    pytest.param(lambda bias: Steps(nn.LSTMCell(5, 6, bias), pair=True), id="lstm"),
    pytest.param(lambda bias: Steps(nn.GRUCell(5, 6, bias)), id="gru"),
    pytest.param(lambda bias: Steps(nn.RNNCell(5, 6, bias)), id="tanh"),
    pytest.param(lambda bias: Steps(nn.RNNCell(5, 6, bias, "relu")), id="relu"),
]


@pytest.mark.parametrize("make", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_two_linear_layers_a_step(make, bias: bool) -> None:  # type: ignore[no-untyped-def]
    found = rewritten(make(bias), (4, 3, 5))
    assert found.ops().count("linear") == 6
    assert not any("cell" in op for op in found.ops())


def test_their_weights_are_codes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Steps(nn.GRUCell(5, 6)).eval()
    found = qtool.quantize(model, [torch.randn(8, 3, 5) for _ in range(3)])
    result = found.export(tmp_path / "cell.onnx")
    assert result is not None
    assert result.coverage.share == 1.0
    assert result.coverage.macs == 3 * 3 * 6 * (5 + 6)
