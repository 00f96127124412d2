"""Windows of pools and convolutions, and what passes through."""

import pytest
import torch
import torch.nn.functional as F

from qtool.backends.kernels.codes import pad, passthrough
from qtool.backends.kernels.windows import (
    extend_pads,
    pad_spatial,
    window_counts,
    window_sum,
    window_taps,
)
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


def test_pad_spatial_pads_and_crops():
    x = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert pad_spatial(x, (0, 1, 1, -1), 9.0).tolist() == [[[[9, 0, 1], [9, 3, 4], [9, 9, 9]]]]
    assert pad_spatial(x, (0, 0, 0, 0)) is x


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_sums_and_taps_agree(rank):
    x = torch.randint(-9, 9, (2, 3, *[7] * rank)).double()
    kernel, stride = (3, 2, 1)[:rank], (2, 1, 3)[:rank]
    taps = window_taps(x, kernel, stride, (1,) * rank)
    assert torch.equal(torch.stack(taps).sum(0), window_sum(x, kernel, stride))


def test_taps_follow_dilation():
    x = torch.arange(49.0).reshape(1, 1, 7, 7)
    taps = torch.stack(window_taps(x, (2, 3), (1, 2), (3, 2)))
    assert torch.equal(taps.amax(0), F.max_pool2d(x, (2, 3), (1, 2), 0, (3, 2)))


def test_counts_leave_padding_out():
    assert window_counts((3,), (3,), (1,), (1, 1)).flatten().tolist() == [2, 3, 2]


def test_pads_grow_for_a_window_that_exceeds_the_image_by_less_than_its_stride():
    assert extend_pads((2,), (3,), (2,), (0, 0)) == (0, 1)
    assert extend_pads((1,), (3,), (2,), (0, 0)) == (0, 0)  # by the stride: there is no window
