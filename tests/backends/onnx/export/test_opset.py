"""Graphs as torch.onnx translates them, in the opset that a target wants."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from qtool.backends.onnx.export.torch_exporter import translate
from qtool.backends.onnx.operators import writers
from qtool.backends.onnxruntime.session import run, session
from qtool.core.graph import torch_ops
from qtool.core.quant_params import QuantParams
from qtool.core.types import UINT16

PARAMS = QuantParams(UINT16, torch.tensor(0.001), torch.tensor(30_000))


class Wide(nn.Module):
    """16-bit codes, and an operator that torch.onnx translates in several."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", PARAMS.scale)
        self.register_buffer("zero", PARAMS.zero_point.to(torch.uint16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch_ops.quantize(torch.softmax(x, 1), self.scale, self.zero)
        return torch_ops.dequantize(codes, self.scale, self.zero, None)


def written(x: torch.Tensor, opset: int) -> onnx.ModelProto:
    program = torch.export.export(Wide().eval(), (x,))
    model = translate(program, writers(contrib=False), opset)
    model.ir_version = 10
    return ir.to_proto(model)


def test_16_bit_codes_are_written_in_opset_21(tmp_path: Path) -> None:
    x, path = torch.randn(4, 5), tmp_path / "model.onnx"
    file = written(x, 21)
    assert [o.version for o in file.opset_import if not o.domain] == [21]
    onnx.checker.check_model(file, full_check=True)
    onnx.save(file, path)
    (found,) = run(session(path, False), [x.numpy()])
    np.testing.assert_allclose(found, Wide()(x).numpy(), atol=float(PARAMS.scale) * 1.01)


def test_the_checker_refuses_them_in_an_older_one() -> None:
    file = written(torch.randn(4, 5), 18)
    assert [o.version for o in file.opset_import if not o.domain] == [18]
    with pytest.raises(onnx.shape_inference.InferenceError, match="uint16"):
        onnx.checker.check_model(file, full_check=True)
