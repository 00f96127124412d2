"""A transposed tensor times a vector, which the runtime would multiply as it lay before."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.session import run, session


class Weighted(nn.Module):
    """Tokens of a linear layer, weighed along the sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.weights = nn.Linear(6, 8), nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).transpose(1, 2) @ self.weights


def test_the_file_gives_the_product(tmp_path: Path) -> None:
    model, data = Weighted().eval(), torch.randn(16, 5, 6)
    quantized = qtool.quantize(model, [data])
    quantized.export(tmp_path / "model.onnx")
    (found,) = run(session(tmp_path / "model.onnx"), [data.numpy()])
    real = model(data).detach()
    assert float((torch.from_numpy(found) - real).abs().max()) < 0.05 * float(real.abs().max())
