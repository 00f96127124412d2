"""Functions of elements that TFLite's reference kernels lack, from those that they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import qtool
from qtool.backends.tflite import litert
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
