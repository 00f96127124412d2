"""Max and average pools, over windows and over whole images."""

from __future__ import annotations

from qtool.core.graph import torch_ops
from qtool.core.ops.row import Op, Role


def last_pad(size: int, covered: int, stride: int, begin: int, end: int) -> int:
    """Return the padding at the end that `ceil_mode` amounts to; no window begins behind the image.

    Args:
        size: of the image.
        covered: cells from the first to the last of a window.
        stride: between windows.
        begin: padding at the beginning.
        end: explicit padding at the end.
    """
    count = -(-(size + begin + end - covered) // stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    return max((count - 1) * stride + covered - size - begin, 0)


POOLS = (
    Op(
        key="global_average_pool",
        targets=(torch_ops.global_average_pool,),
    ),
    Op(key="average_pool", targets=(torch_ops.average_pool,)),
    Op(key="max_pool", targets=(torch_ops.max_pool,), role=Role.PASS),
)
