"""What no recording holds: parameters at the edge of what the runtime takes."""

from __future__ import annotations

import torch

from qtool.backends.profiles import profile
from qtool.core.types import UINT8
from tests.backends.kernels.ort_session import params


def test_hard_swish_adds_its_zero_point_in_16_bits():
    """32612 + 196 is past int16: LiteRT 2.3.0 gives 0 for the largest code, not 255."""
    x, out = params(UINT8, 0.999218761920929, 0), params(UINT8, 1 / 128, 196)
    kernel = profile("tflite").bind("hard_swish", x, out)
    assert kernel(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [196, 0]
    below = params(UINT8, 1 / 128, 100)
    found = profile("tflite").bind("hard_swish", x, below)
    assert found(torch.tensor([255], dtype=torch.uint8)).tolist() == [255]
