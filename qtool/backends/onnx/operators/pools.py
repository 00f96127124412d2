"""Max and average pools, over windows and over whole images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from qtool.backends.onnx.operators.schemas import Writer, op
from qtool.core.errors import ExportError
from qtool.core.graph import torch_ops
from qtool.core.windows import last_pad, spans


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
        # as pads: onnx before opset 22 infers an extra window that begins in the padding
        wide = list(map(last_pad, sizes, spans(kernel, dilation), stride, padding, padding))
        if all(end < k for end, k in zip(wide, kernel, strict=True)):  # ONNX Runtime requires it
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
    """A multiple of the mean over full windows: the image is padded with zeros first."""
    sizes, ends = list(x.shape)[2:], list(padding)
    if ceil_mode:
        if not all(isinstance(size, int) for size in sizes):
            raise ExportError("an average pool with ceil_mode and a divisor takes fixed sizes only")
        ends = list(map(last_pad, sizes, kernel, stride, padding, padding))
    pads = op.Constant(value_ints=[0, 0, *padding, 0, 0, *ends])
    mean = op.AveragePool(op.Pad(x, pads), kernel_shape=list(kernel), strides=list(stride))
    return op.Mul(mean, op.Constant(value_float=prod(kernel) / divisor))


def _global_average_pool(x: Any) -> Any:
    return op.GlobalAveragePool(x)


def _adaptive(reduce: str) -> Writer:
    """Return the writer of an adaptive pool: the reduced slices of one dimension after the other,
    at positions computed from its size."""

    def write(x: Any, sizes: Sequence[int]) -> Any:
        for axis, count in enumerate(sizes, start=2):
            if count:
                x = _along(x, axis, count, getattr(op, reduce))
        return x

    return write


def _along(x: Any, axis: int, count: int, reduce: Writer) -> Any:
    axes = op.Constant(value_ints=[axis])
    if count == 1:
        return reduce(x, axes, keepdims=1)
    size, windows = op.Shape(x, start=axis, end=axis + 1), []
    for i in range(count):  # floor(i * size / count) to ceil((i + 1) * size / count)
        begin = op.Mul(size, op.Constant(value_ints=[i]))
        end = op.Add(
            op.Mul(size, op.Constant(value_ints=[i + 1])), op.Constant(value_ints=[count - 1])
        )
        ends = (op.Div(each, op.Constant(value_ints=[count])) for each in (begin, end))
        windows.append(reduce(op.Slice(x, *ends, axes), axes, keepdims=1))
    return op.Concat(*windows, axis=axis)


WRITERS: dict[Any, Writer] = {
    torch_ops.adaptive_average_pool: _adaptive("ReduceMean"),
    torch_ops.adaptive_max_pool: _adaptive("ReduceMax"),
    torch_ops.global_average_pool: _global_average_pool,
    torch_ops.average_pool: _average_pool,
    torch_ops.max_pool: _max_pool,
}
