"""Window geometry, counted by hand and against torch's own pooling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from qtool.backends.kernels.windows import (
    extend_pads,
    pad_spatial,
    window_counts,
    window_sum,
    window_taps,
)


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
