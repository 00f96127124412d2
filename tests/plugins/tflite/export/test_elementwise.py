"""Element-wise operators in .tflite files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qtool
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.file import load
from qtool.plugins.tflite.tflite_file import TfliteFile
from tests.needs import needs_litert


class Round(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)


@needs_litert
def test_rounding_takes_halves_to_even_numbers(tmp_path: Path) -> None:
    near = np.arange(-9, 9.5, 0.5, dtype=np.float32)
    below, above = (np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf))
    large = np.float32(2) ** np.arange(20, 60)
    x = np.concatenate([near, below, above, large, large + 0.5, -large - 0.5]).astype(np.float32)
    path = tmp_path / "round.tflite"
    qtool.capture_model(Round().eval(), torch.zeros(2, x.size)).export_float(path)
    (result,) = litert.run_reference(path, [x[None]])
    np.testing.assert_array_equal(result[0], np.round(x))


class Joined(nn.Module):
    """A concat of a tensor with a larger one; another layer reads the first, too."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.d = nn.Conv2d(8, 4, 1)
        with torch.no_grad():
            self.b.weight.mul_(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)
        joined: torch.Tensor = self.d(torch.cat([a, self.b(x)], 1))
        return self.c(a) + joined


@pytest.mark.parametrize(("factor", "kind"), [(4.0, "ADD"), (1.6, "QUANTIZE")])
@needs_litert
def test_requantization_rounds_once(factor: float, kind: str, tmp_path: Path) -> None:
    x = torch.randn(32, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    model = qtool.quantize(Joined(factor).eval(), [x], target="tflite", accuracy="fast")
    path = tmp_path / "model.tflite"
    result = model.export(path, timing=0)
    assert result.passed
    file = load(path)
    names = [t.name for t in file.tensors]
    op = next(o for o in file.operators if names[o.outputs[0]].endswith(".requantize"))
    assert op.name == kind
    values = TfliteFile(path).trace([x[:4].numpy()])
    source, target = (file.tensors[i] for i in (op.inputs[0], op.outputs[0]))
    assert source.quantization is not None
    assert target.quantization is not None
    real = values[source.name].double() - float(source.quantization.zero_point[0])
    ratio = float(source.quantization.scale[0]) / float(target.quantization.scale[0])
    exact = (real * ratio + float(target.quantization.zero_point[0])).clamp(-128, 127)
    error = values[target.name].double() - exact
    assert float(error.abs().max()) <= 0.5 + 1e-4
    assert abs(float(error.mean())) < 0.1
