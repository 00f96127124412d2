"""A quantized file in float arithmetic: what stands for the float model where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.model_file import remove_quantization
from qtool.backends.onnxruntime.session import cpu_session

IDS = torch.randint(0, 16, (32, 6), generator=torch.Generator().manual_seed(0))


class Shifted(nn.Module):
    """Looks up rows by indices that it computes, as encoders of texts do for their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer = nn.Embedding(16, 8), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(self.rows((ids + 1) % 16))
        return output


def test_computed_indices_stay_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, path = Shifted().eval(), tmp_path / "net.onnx"
    qtool.quantize(net, [IDS]).export(path)
    types = {n.op_type for n in onnx.load(path).graph.node}
    model = remove_quantization(path)
    left = {n.op_type for n in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= types - left
    onnx.shape_inference.infer_shapes(model, strict_mode=True)
    (result,) = cpu_session(model.SerializeToString()).run(None, {"ids": IDS.numpy()})
    np.testing.assert_allclose(result, net(IDS).detach().numpy(), atol=0.05)
