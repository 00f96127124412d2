"""torch's convolutions and pools by the number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.nn import functional as F


def _by_rank(name: str) -> Mapping[int, Callable[..., Tensor]]:
    return {rank: getattr(F, f"{name}{rank}d") for rank in (1, 2, 3)}


CONV = _by_rank("conv")
CONV_TRANSPOSE = _by_rank("conv_transpose")
MAX_POOL = _by_rank("max_pool")
AVERAGE_POOL = _by_rank("avg_pool")
ADAPTIVE_AVERAGE_POOL = _by_rank("adaptive_avg_pool")
ADAPTIVE_MAX_POOL = _by_rank("adaptive_max_pool")


def divided_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    counted: bool = True,
    divisor: int | None = None,
) -> Tensor:
    """Return the average pool of x [N, C, *spatial], with a divisor in every rank.

    Args:
        counted: padding counts in the mean.
        divisor: number that the sum of a window is divided by, in place of the number of its
            elements.
    """
    rank = len(kernel)
    if rank == 1:  # ATen's avg_pool1d has no divisor
        wide = ([1, *kernel], [1, *stride], [0, *padding], ceil_mode, counted, divisor)
        return divided_pool(x.unsqueeze(-2), *wide).squeeze(-2)
    options = (list(kernel), list(stride), list(padding), ceil_mode, counted, divisor)
    return AVERAGE_POOL[rank](x, *options)
