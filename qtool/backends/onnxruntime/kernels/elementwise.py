"""ONNX Runtime QLinearAdd, QLinearMul and QLinearConcat.

Sources: onnxruntime/core/mlas/lib/intrinsics/avx2/qladd_avx2.cpp, qlmul.cpp;
onnxruntime/contrib_ops/cpu/quantization/qlinear_concat.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest

import torch
from torch import Tensor

from qtool.backends.kernels import params
from qtool.backends.kernels.codes import all_codes, gather
from qtool.backends.kernels.fma import fma32
from qtool.backends.kernels.params import Kernel, same_params
from qtool.backends.onnxruntime.kernels.common import (
    check_byte,
    requantize,
    saturate,
    scalar32,
)
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams


def add(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Rescaled addition of two code tensors of one 8-bit type (broadcasting).

    With ra = f32(sa / sc), rb = f32(sb / sc) the runtime computes
    rint(fma(a, ra, fma(b, rb, zc - fma(ra, za, f32(rb * zb))))): the zero point is inside the
    rounding. Where the first operand is the one repeated along the innermost axis, the runtime
    exchanges the operands, and the last float bit with them; so does this kernel.
    """
    straight = _add_in_order(a, b, out)

    @cache
    def exchanged() -> Kernel:
        return _add_in_order(b, a, out)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return exchanged()(y, x) if first_repeats(x.shape, y.shape) else straight(x, y)

    return kernel


def first_repeats(x: Sequence[int], y: Sequence[int]) -> bool:
    """Whether x has length 1 on the innermost axis that has more than one element."""
    for i, j in zip_longest(reversed(x), reversed(y), fillvalue=1):
        if i != 1 or j != 1:
            return i == 1
    return False


def _add_in_order(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """The formula of `add`, in float32 where that is proven, else by a table of all pairs.

    All 65,536 pairs of codes are computed with true fused multiply-adds; plain float32 (two
    roundings more, but quick) is used where it gives the same code for every one of them.
    """
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    ratio_a, ratio_b = scale_a / scale, scale_b / scale
    inner = fma32(
        ratio_a, torch.tensor(float(zero_a), dtype=torch.float32), ratio_b * float(zero_b)
    )
    fixed = float(zero) - inner

    def plain(x: Tensor, y: Tensor) -> Tensor:
        right = y.to(torch.float32).mul_(ratio_b).add_(fixed)
        if x.shape != y.shape:
            return saturate((x.to(torch.float32) * ratio_a + right).round_(), out)
        return saturate(right.add_(x.to(torch.float32).mul_(ratio_a)).round_(), out)

    def exact(x: Tensor, y: Tensor) -> Tensor:
        return fma32(x, ratio_a, fma32(y, ratio_b, fixed))

    table, codes = all_pairs(a, out, exact), all_codes(a)
    if torch.equal(plain(codes.reshape(-1, 1), codes), table):
        return plain
    return pair_table(table, int(codes[0]))


def mul(a: QuantParams, b: QuantParams, out: QuantParams) -> Kernel:
    """Product of two code tensors of one 8-bit type (broadcasting).

    rint(f32(f32((a - za)(b - zb)) * f32(f32(sa * sb) / sc)) + zc): zero point inside the rounding.
    """
    (scale_a, zero_a), (scale_b, zero_b), (scale, zero) = operands(a, b, out)
    factor = scale_a * scale_b / scale

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        left, right = x.to(torch.float32), y.to(torch.float32)
        product = left.sub_(zero_a) * right.sub_(zero_b)
        return saturate(product.mul_(factor).add_(zero).round_(), out)

    return kernel


def concat(inputs: Sequence[QuantParams], out: QuantParams, *, axis: int) -> Kernel:
    """Concatenation; inputs whose parameters differ from the output's go through a table."""
    per_input = [_copy if same_params(p, out) else requantize(p, out) for p in inputs]
    if any(p.qtype.dtype != out.qtype.dtype for p in inputs):
        raise KernelError("QLinearConcat needs inputs and output of one type")

    def kernel(*codes: Tensor) -> Tensor:
        return torch.cat([f(x) for f, x in zip(per_input, codes, strict=True)], dim=axis)

    return kernel


def _copy(codes: Tensor) -> Tensor:
    return codes


def operands(
    a: QuantParams, b: QuantParams, out: QuantParams
) -> tuple[tuple[Tensor, int], tuple[Tensor, int], tuple[Tensor, int]]:
    """Return scale, float32 of rank 0, and zero point of both inputs and of the output.

    Raises:
        KernelError: types that the integer kernels do not have.
    """
    check_byte(a, "first input")
    params.operands(a, b, out)
    return scalar32(a, "first input"), scalar32(b, "second input"), scalar32(out, "output")


def all_pairs(
    a: QuantParams, out: QuantParams, combine: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the codes of all pairs of codes: [codes of a, codes of b].

    Args:
        a: parameters of both operands.
        out: parameters of the result.
        combine: takes codes of both as float32, and returns what is rounded to codes.
    """
    codes = all_codes(a).to(torch.float32)
    return saturate(combine(codes.reshape(-1, 1), codes).round_(), out)


def by_pairs(
    a: QuantParams, out: QuantParams, combine: Callable[[Tensor, Tensor], Tensor]
) -> Kernel:
    """Bind a look-up in `all_pairs`, with its arguments."""
    return pair_table(all_pairs(a, out, combine), int(all_codes(a)[0]))


def pair_table(table: Tensor, lowest: int) -> Kernel:
    """Bind (x, y) -> table[x - lowest, y - lowest], broadcasting.

    Args:
        table: codes [256, 256], one row for each code of the first operand.
        lowest: the lowest code of the operands, 0 or -128.
    """
    flat = table.reshape(-1)

    def by_table(x: Tensor, y: Tensor) -> Tensor:
        index = x.to(torch.int32).mul_(256)
        index = index.add_(y) if x.shape == y.shape else index + y
        if lowest:
            index -= 257 * lowest
        return gather(flat, index)

    return by_table
