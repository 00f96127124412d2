"""Operators that move codes and never change them; input and output share their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from qtool.backends.kernels.params import Kernel, per_tensor, same_params
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import CallEdit


def passthrough(x: QuantParams, out: QuantParams, move: Callable[..., Tensor]) -> Kernel:
    """Codes -> move(codes), for reshape, transpose, slice, split, gather, nearest resize, ...

    `move` must only rearrange or repeat elements; it may return several tensors (a split).
    KernelError where the parameters differ: equal codes would then mean other values.
    """
    if not same_params(x, out):
        raise KernelError(
            "this operator passes codes through, so its output needs the input's parameters; "
            "share them, or requantize after it"
        )
    return move


def pad(
    x: QuantParams, out: QuantParams, *, pads: Sequence[int], value: int | None = None
) -> Kernel:
    """Constant padding of every axis: `pads` lists all begins, then all ends.

    Fills with the zero point (a real 0), or with the code `value`.
    """
    _, zero = per_tensor(x, "input")
    fill = zero if value is None else value
    if not x.qtype.qmin <= fill <= x.qtype.qmax:
        raise KernelError(
            f"the pad code {fill} is outside {x.qtype}", CallEdit("use a code of the type")
        )
    rank = len(pads) // 2
    pairs = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])]

    def move(codes: Tensor) -> Tensor:
        return F.pad(codes, pairs, value=fill)

    return passthrough(x, out, move)
