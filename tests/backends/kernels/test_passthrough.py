"""Operators that move codes."""

from __future__ import annotations

import pytest
import torch

from qtool.backends.kernels.passthrough import pad, passthrough
from qtool.core.errors import KernelError
from qtool.core.types import UINT8
from tests.backends.kernels.ort_session import params

P = params(UINT8, 0.1, 7)
CODES = torch.arange(6, dtype=torch.uint8).reshape(2, 3)


def test_moves_codes_only_between_equal_parameters():
    assert torch.equal(passthrough(P, P, torch.t)(CODES), CODES.t())
    parts = passthrough(P, P, lambda c: c.split(1, dim=1))(CODES)
    assert [p.shape for p in parts] == [(2, 1)] * 3
    with pytest.raises(KernelError, match="share them"):
        passthrough(P, params(UINT8, 0.2, 7), torch.t)


def test_pads_with_the_zero_point_or_a_code():
    want = [[7, 0, 1, 2], [7, 3, 4, 5], [7, 7, 7, 7]]
    assert pad(P, P, pads=(0, 1, 1, 0))(CODES).tolist() == want
    assert pad(P, P, pads=(0, 1, 0, 0), value=9)(CODES)[:, 0].tolist() == [9, 9]
    with pytest.raises(KernelError, match="outside uint8"):
        pad(P, P, pads=(0, 1, 0, 0), value=256)
