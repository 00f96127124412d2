"""Window geometry shared by convolution and pooling: explicit pads, output sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from qtool.core.spatial_functions import divided_pool
from qtool.core.windows import spans, window_count


def pad_spatial(x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the trailing len(pads)/2 axes; a negative pad crops."""
    if not any(pads):
        return x
    rank = len(pads) // 2
    pairs = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]
    return F.pad(x, pairs, value=value)


def extend_pads(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return pads with which a window fits that exceeds the padded image by less than its stride.

    ONNX Runtime's pools divide towards zero, and such a window covers the cells that exist.
    """
    rank, extended = len(kernel), list(pads)
    covered = spans(kernel, dilation or [1] * rank)
    for i, (size, span, s) in enumerate(zip(sizes, covered, stride, strict=True)):
        missing = span - (size + pads[i] + pads[i + rank])
        if 0 < missing < s:
            extended[i + rank] += missing
    return tuple(extended)


def window_sum(x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Exact sums over windows of integer-valued float64 [N, C, *spatial], no padding."""
    return divided_pool(x, kernel, stride, [0] * len(kernel), divisor=1)


def window_counts(
    sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], pads: Sequence[int]
) -> Tensor:
    """How many cells of each window lie inside the image, int64 [1, 1, *out]."""
    ones = torch.ones(1, 1, *sizes, dtype=torch.float64)
    return window_sum(pad_spatial(ones, pads), kernel, stride).to(torch.int64)


def window_taps(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[Tensor]:
    """The strided view of every window position, in row-major window order."""
    rank = len(kernel)
    outs = list(map(window_count, x.shape[-rank:], spans(kernel, dilation), stride))
    taps = [x]
    for i in range(rank):
        axis = i - rank
        taps = [
            tap.narrow(axis, j * dilation[i], (outs[i] - 1) * stride[i] + 1)
            .unfold(axis, 1, stride[i])
            .squeeze(-1)
            for tap in taps
            for j in range(kernel[i])
        ]
    return taps
