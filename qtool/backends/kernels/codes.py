"""Kernels that look codes up in a table, or move them and never change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qtool.backends.kernels.params import Kernel, per_tensor, same_params
from qtool.backends.kernels.windows import pad_spatial
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.remedies import CallEdit
from qtool.core.types import QType


def all_codes(x: QuantParams) -> Tensor:
    """Return every code of an 8-bit type, ascending, in the type's dtype."""
    if torch_dtype(x.qtype) not in (torch.uint8, torch.int8):
        raise KernelError(f"a table needs an 8-bit input, not {x.qtype}")
    info = torch.iinfo(torch_dtype(x.qtype))
    return torch.arange(info.min, info.max + 1).to(torch_dtype(x.qtype))


def lookup(table: Tensor, qtype: QType) -> Kernel:
    """Bind code -> table[code]; `table` follows `all_codes`, indices are views, not copies."""
    if qtype.signed:  # as uint8, int8 codes 0..127 come first
        table = torch.cat([table[128:], table[:128]])

    def kernel(codes: Tensor) -> Tensor:
        return gather(table, codes.view(torch.uint8).to(torch.int32))

    return kernel


def gather(table: Tensor, index: Tensor) -> Tensor:
    """table[index] for int32 indices of any shape; keeps a channels-last layout."""
    last = index.dim() == 4 and index.is_contiguous(memory_format=torch.channels_last)
    ordered = index.permute(0, 2, 3, 1) if last else index
    values = table.index_select(0, ordered.reshape(-1)).view(ordered.shape)
    return values.permute(0, 3, 1, 2) if last else values


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
    return passthrough(x, out, lambda codes: pad_spatial(codes, pads, fill))
