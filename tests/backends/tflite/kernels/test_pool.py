"""Pools whose form the recorded runtime does not have: counted pads are a PAD in front."""

from __future__ import annotations

import torch

from qtool.backends.tflite.kernels.pool import average_pool
from qtool.core.types import INT8
from tests.backends.kernels.ort_session import params


def test_counted_pads_are_zeros_and_not_code_zero():
    zeros, x = torch.full((1, 1, 2, 2), -40, dtype=torch.int8), params(INT8, 0.5, -40)
    kernel = average_pool(x, x, kernel=(3, 3), stride=(1, 1), pads=1, count_include_pad=True)
    assert torch.equal(kernel(zeros), zeros)
