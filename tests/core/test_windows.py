"""Counts and pads of windows, against the sizes that torch computes."""

from itertools import product

import torch
from torch.nn import functional as F

from qtool.core.windows import (
    fixed_same_pads,
    last_pad,
    overhang,
    same_padding,
    spans,
    window_count,
)

FORMS = [
    (size, kernel, stride, dilation, pad)
    for size, kernel, stride, dilation, pad in product(
        range(4, 12), range(1, 5), range(1, 5), (1, 2), (0, 1, 2)
    )
    if 2 * pad <= kernel and size + 2 * pad >= dilation * (kernel - 1) + 1
]


def _pooled(form: tuple[int, ...], ceil_mode: bool) -> int:
    size, kernel, stride, dilation, pad = form
    x = torch.zeros(1, 1, size)
    return F.max_pool1d(x, kernel, stride, pad, dilation, ceil_mode).shape[-1]


def test_windows_are_counted_as_torch_does() -> None:
    for form in FORMS:
        size, kernel, stride, dilation, pad = form
        (span,) = spans([kernel], [dilation])
        assert window_count(size, span, stride, 2 * pad) == _pooled(form, ceil_mode=False), form


def test_the_last_pad_gives_the_windows_of_ceil_mode_and_is_as_short_as_they_allow() -> None:
    for form in FORMS:
        size, kernel, stride, dilation, pad = form
        (span,), count = spans([kernel], [dilation]), _pooled(form, ceil_mode=True)
        end = last_pad(size, span, stride, pad, pad)
        assert window_count(size, span, stride, pad + end) == count, form
        assert end == max(overhang(count, size, span, stride, pad), 0), form


def test_same_padding_gives_a_window_per_stride() -> None:
    for size, kernel, stride, dilation, _ in FORMS:
        (span,) = spans([kernel], [dilation])
        pads = same_padding(size, span, stride)
        windows = -(-size // stride)
        assert window_count(size, span, stride, pads) == windows
        assert pads == overhang(windows, size, span, stride, 0)


def test_fixed_pads_are_same_for_all_sizes_where_their_beginning_is() -> None:
    for span, stride, lower in product(range(1, 9), range(1, 5), (False, True)):
        if span < stride:
            continue
        totals = [same_padding(size, span, stride) for size in range(8, 20)]
        begins = {(total + lower) // 2 for total in totals}
        pads = fixed_same_pads(span, stride, lower)
        assert (pads is not None) == (len(begins) == 1)
        if pads is not None:
            assert pads[0] in begins
            for size in range(8, 20):
                assert window_count(size, span, stride, sum(pads)) == -(-size // stride)
