"""Tables over the 256 codes of an 8-bit tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from qtool.backends.kernels.params import Kernel
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams, torch_dtype
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
