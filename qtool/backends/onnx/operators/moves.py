"""Data movement: reshapes, slices, pads; and resizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from qtool.backends.onnx.operators.schemas import TorchOperator, Value, Writer, op
from qtool.core.graph import torch_ops

aten = torch.ops.aten


def _as_tensor(sizes: Sequence[Value]) -> Value:
    """Return sizes, numbers or computed ones, as an int64 tensor of rank 1."""
    if all(isinstance(s, int) for s in sizes):
        return op.Constant(value_ints=list(sizes))
    one = op.Constant(value_ints=[1])
    parts = [
        op.Constant(value_ints=[s]) if isinstance(s, int) else op.Reshape(s, one) for s in sizes
    ]
    return op.Concat(*parts, axis=0)


def _reshape(x: Value, sizes: Sequence[Value]) -> Value:
    # a computed size may be 0, which would copy the size of the input
    computed = not all(isinstance(s, int) for s in sizes)
    empty = {"allowzero": 1} if computed and -1 not in sizes else {}
    return op.Reshape(x, _as_tensor(sizes), **empty)


def _resize(mode: str, **fixed: Any) -> Callable[..., Value]:
    """Return the writer of upsample_*.vec. Writes factors if they give the same sizes: sizes need
    the batch size. (ONNX Runtime moves transposes over a Resize and ignores its `axes`.)"""

    def write(
        x: Value,
        sizes: Sequence[Value] | None,
        align: bool = False,
        factors: Sequence[float] | None = None,
    ) -> Value:
        mapping = "align_corners" if align else "half_pixel"  # pytorch_half_pixel: 0 of a size of 1
        options = {"coordinate_transformation_mode": mapping, **fixed, "mode": mode}
        scales = list(factors) if factors else _factors(list(x.shape)[2:], sizes or ())
        if mode == "cubic" and (scales is None or min(scales) < 1):
            # the runtime moves transposes over a Resize, and then refuses one that shrinks
            x = op.Reshape(x, op.Constant(value_ints=[0, 0, 0, -1]))
        if scales is not None:
            return op.Resize(x, None, op.Constant(value_floats=[1.0, 1.0, *scales]), **options)
        new_sizes = op.Concat(op.Shape(x, end=2), _as_tensor(sizes or ()), axis=0)
        return op.Resize(x, None, None, new_sizes, **options)

    return write


def _factors(before: Sequence[Value], after: Sequence[Value]) -> list[float] | None:
    """Return out / in if float32 gives the same sizes and neighbours as the integers, else None."""
    factors = []
    for size, new_size in zip(before, after, strict=True):
        if not isinstance(size, int) or not isinstance(new_size, int):
            return None
        factor = np.float32(new_size / size)
        positions = np.arange(new_size)
        # shape inference may compute in either type
        sizes = {int(np.float32(size) * factor), int(size * float(factor))}
        nearest = np.floor(positions.astype(np.float32) / factor).astype(np.int64)
        if sizes != {new_size} or (nearest != positions * size // new_size).any():
            return None
        factors.append(float(factor))
    return factors


def _nearest(mapping: str, mode: str) -> Writer:
    """Return the writer of upsample_nearest*.vec: the neighbour at floor(i / factor), or of each
    pixel's centre, at floor((i + 1/2) / factor)."""
    resize = _resize("nearest", coordinate_transformation_mode=mapping, nearest_mode=mode)

    def write(
        x: Value, sizes: Sequence[int] | None, factors: Sequence[float] | None = None
    ) -> Value:
        return resize(x, sizes, False, factors)

    return write


_TO_FLOOR = _nearest("asymmetric", "floor")


def _index_select(x: Value, dim: int, index: Value) -> Value:
    return op.Gather(x, index, axis=dim)


def _squeeze(x: Value, dims: Sequence[int]) -> Value:
    """Keeps dimensions that are not of size 1, which ONNX's Squeeze refuses."""
    sizes = list(x.shape)
    axes = [d for d in dims if sizes[d] == 1]
    return op.Squeeze(x, op.Constant(value_ints=axes)) if axes else op.Identity(x)


def _pad(x: Value, widths: Sequence[Value], fill: Value) -> Value:
    rank = len(x.shape)
    begins: list[Value] = [0] * rank
    ends: list[Value] = [0] * rank
    for i in range(len(widths) // 2):  # ATen: from the last dimension, (begin, end) by (begin, end)
        begins[rank - 1 - i], ends[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    return op.Pad(x, _as_tensor([*begins, *ends]), fill)


def _constant_pad(x: Value, widths: Sequence[Value], value: float = 0.0) -> Value:
    return _pad(x, widths, op.CastLike(op.Constant(value_float=float(value)), x))


def _pad_codes(codes: Value, widths: Sequence[int], value: int) -> Value:
    fill = np.array(value, dtype=codes.dtype.numpy())
    return _pad(codes, widths, op.Constant(value=onnx.numpy_helper.from_array(fill)))


def _floordiv(a: Value, b: Value) -> Value:
    """Floor division of sizes. torch.onnx writes ONNX's Div, which truncates and is right only for
    numbers that are not negative; in -(-n // 2), the half of n rounded up, one is."""
    return op.Div(op.Sub(a, op.Mod(a, b)), b)


WRITERS: dict[TorchOperator, Writer] = {
    operator.floordiv: _floordiv,
    torch_ops.pad_codes: _pad_codes,
    torch_ops.reshape: _reshape,
    aten.constant_pad_nd.default: _constant_pad,
    aten.squeeze.dims: _squeeze,
    aten.index_select.default: _index_select,
    aten.upsample_nearest2d.vec: _TO_FLOOR,
    aten._upsample_nearest_exact2d.vec: _nearest("half_pixel", "round_prefer_ceil"),
    aten.upsample_nearest1d.vec: _TO_FLOOR,
    aten.upsample_nearest3d.vec: _TO_FLOOR,
    aten.upsample_linear1d.vec: _resize("linear"),
    aten.upsample_bilinear2d.vec: _resize("linear"),
    aten.upsample_trilinear3d.vec: _resize("linear"),
    aten.upsample_bicubic2d.vec: _resize("cubic", cubic_coeff_a=-0.75),
}
