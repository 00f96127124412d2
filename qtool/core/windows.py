"""Windows of convolutions and pools along one dimension: how many there are, and what they cover.

Readers and writers of both formats, passes, targets and kernels count with these functions, and a
runtime checks each of them. Sizes may be symbols where a function says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spans(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return the cells from the first to the last of a window, per dimension."""
    return [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]


def window_count(size: int, span: int, stride: int, pads: int = 0) -> int:
    """Return how many windows lie in the image with its padding; <= 0 if it is too small.

    Args:
        size: length of the image; may be a symbol.
        span: length of a window, see `spans`.
        stride: cells from a window to the next.
        pads: padding at both ends together.
    """
    return (size + pads - span) // stride + 1


def overhang(count: int, size: int, span: int, stride: int, begin: int) -> int:
    """Return how far the last of `count` windows extends past the image; below 0, by how many
    cells it ends before.

    Args:
        count: number of windows.
        size, span, stride: see `window_count`.
        begin: padding at the beginning.
    """
    return (count - 1) * stride + span - size - begin


def last_pad(size: int, span: int, stride: int, begin: int, end: int) -> int:
    """Return the padding at the end that `ceil_mode` amounts to: no window begins behind the image.

    Args:
        size, span, stride: see `window_count`.
        begin, end: explicit padding.
    """
    count = -(-(size + begin + end - span) // stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    return max(overhang(count, size, span, stride, begin), 0)


def same_padding(size: Any, span: int, stride: int) -> Any:
    """Return the padding at both ends together with which there are ceil(size / stride) windows:
    SAME of TFLite and of ONNX. Below 0 where windows shorter than the stride leave cells out.

    Args:
        size, span, stride: see `window_count`.
    """
    return span - 1 if stride == 1 else span - stride + -size % stride


def fixed_same_pads(span: int, stride: int, lower: bool = False) -> tuple[int, int] | None:
    """Return pads (begin, end) that amount to SAME for every size, None where there are none.

    The begin is the same for all sizes with stride 1, and with stride 2 where what is left over is
    even (upper) or odd (lower). More padding at the end, below a stride, adds no window.

    Args:
        span, stride: see `window_count`; a window is not shorter than the stride.
        lower: the odd cell of padding is at the beginning (SAME_LOWER), not at the end.
    """
    begins = {(span - stride + rest + lower) // 2 for rest in range(stride)}
    return (begin, span - 1 - begin) if (begin := min(begins)) == max(begins) else None
