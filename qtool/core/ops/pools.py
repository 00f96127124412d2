"""Pools: the largest or the mean of each window, or of the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.core.ops.onnx_forms import op
from qtool.core.ops.row import Op, Role


def last_pad(size: int, covered: int, stride: int, begin: int, end: int) -> int:
    """The padding behind an image that `ceil_mode` comes to; the last window begins before it.

    covered: cells from the first to the last of a window. begin, end: the padding as it is.
    """
    count = -(-(size + begin + end - covered) // stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    return max((count - 1) * stride + covered - size - begin, 0)


def _max_pool(
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Any:
    ends, sizes = list(padding), list(x.shape)[2:]
    if ceil_mode and all(isinstance(size, int) for size in sizes):
        # in pads: onnx before opset 22 infers a window more where one would begin in the padding
        covered = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
        wide = list(map(last_pad, sizes, covered, stride, padding, padding))
        if all(end < k for end, k in zip(wide, kernel, strict=True)):  # the runtime takes no other
            ends, ceil_mode = wide, False
    largest, _ = op.MaxPool(
        x,
        kernel_shape=list(kernel),
        strides=list(stride),
        pads=[*padding, *ends],
        dilations=list(dilation),
        ceil_mode=int(ceil_mode),
    )
    return largest


def _average_pool(
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    counted: bool,
    divisor: int | None,
) -> Any:
    if divisor is not None:
        return _divided(x, kernel, stride, padding, ceil_mode, divisor)
    return op.AveragePool(
        x,
        kernel_shape=list(kernel),
        strides=list(stride),
        pads=[*padding, *padding],
        ceil_mode=int(ceil_mode),
        count_include_pad=int(counted),
    )


def _divided(
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    divisor: int,
) -> Any:
    """A multiple of the mean over windows that all count the same: what hangs over the end, or lies
    in the padding, is padded with zeros first."""
    sizes = list(x.shape)[2:]
    ends = list(padding)
    for axis, (size, width, step, pad) in enumerate(
        zip(sizes, kernel, stride, padding, strict=True)
    ):
        if not ceil_mode:
            continue
        if not isinstance(size, int):
            raise ExportError("an average pool with ceil_mode and a divisor takes fixed sizes only")
        count = -(-(size + 2 * pad - width) // step) + 1
        count -= (count - 1) * step >= size + pad  # no window begins behind the image
        ends[axis] = (count - 1) * step + width - size - pad
    pads = op.Constant(value_ints=[0, 0, *padding, 0, 0, *(max(e, 0) for e in ends)])
    mean = op.AveragePool(op.Pad(x, pads), kernel_shape=list(kernel), strides=list(stride))
    return op.Mul(mean, op.Constant(value_float=prod(kernel) / divisor))


def _global_average_pool(x: Any) -> Any:
    return op.GlobalAveragePool(x)


POOLS = (
    Op(
        key="global_average_pool",
        targets=(torch_ops.global_average_pool,),
        onnx=_global_average_pool,
    ),
    Op(key="average_pool", targets=(torch_ops.average_pool,), onnx=_average_pool),
    Op(key="max_pool", targets=(torch_ops.max_pool,), role=Role.PASS, onnx=_max_pool),
)
