"""Binders of layers and of products of two activations.

A kernel adds products in integers and turns each sum into a code. Runtimes differ in both: in how
they add (`sums_of`, exact or with saturation) and in how they scale the sums (`scale`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from qtool.backends.kernels.accumulate import Accumulate
from qtool.backends.kernels.params import NO_BOUNDS, Kernel
from qtool.core.quant_params import QuantParams
from qtool.core.types import Bounds

SumsOf = Callable[..., Accumulate]
"""Binds sums of products, with the arguments of `accumulate.conv_accumulator` and the like."""

ToCodes = Callable[[Tensor], Tensor]
"""Takes sums of products, returns output codes."""

Scale = Callable[[QuantParams, QuantParams, QuantParams, int, int, Bounds], ToCodes]
"""Binds the way from sums to codes.

Takes the parameters of input, weight and output, the numbers of output channels and of axes behind
them, and the real bounds of a fused activation. Raises KernelError for types that the runtime's
kernel does not have.
"""


def layer(sums_of: SumsOf, scale: Scale, axis: int = 0) -> Callable[..., Kernel]:
    """Return the binder of a layer with a stored weight.

    It takes the parameters of input, weight and output, the codes of the weight, those of the bias
    (int32, at scale input * weight; None for zeros), the bounds of a fused activation, and what
    else `sums_of` takes.

    Args:
        sums_of: how products are added.
        scale: how sums are scaled.
        axis: dimension of the weight that has the output channels.
    """

    def bind(
        x: QuantParams,
        w: QuantParams,
        out: QuantParams,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        bounds: Bounds = NO_BOUNDS,
        **geometry: Any,
    ) -> Kernel:
        rank = max(weight.dim() - 2, 0)
        to_codes = scale(x, w, out, weight.shape[axis], rank, bounds)
        sums = sums_of(x, w, weight, bias, **geometry)
        return lambda codes: to_codes(sums(codes))

    return bind


def product(sums_of: SumsOf, scale: Scale) -> Callable[..., Kernel]:
    """Return the binder of a product of two activations: [..., M, K] @ [..., K, N].

    It takes the parameters of both and of the output, and the bounds of a fused activation.
    """

    def bind(
        a: QuantParams, b: QuantParams, out: QuantParams, *, bounds: Bounds = NO_BOUNDS
    ) -> Kernel:
        to_codes, sums = scale(a, b, out, 1, 0, bounds), sums_of(a, b)
        return lambda left, right: to_codes(sums(left, right))

    return bind
