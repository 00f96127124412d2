"""Pairs of weights whose products x86 CPUs without VNNI add in 16 bits.

vpmaddubsw multiplies uint8 activations by int8 weights and adds neighbouring products with signed
16-bit saturation. Which weights are neighbours follows from how a runtime packs them:

- MLAS (ONNX Runtime) takes the inputs of a product two by two, (0, 1), (2, 3) and so on. A
  convolution is a product over the window, position by position and within each position over the
  input channels of the group. With an odd number of channels per group pairs therefore reach from
  one position into the next. Depthwise convolutions have no pairs. Layout, kernel size, strides and
  blocking change nothing. (onnxruntime/core/mlas/lib/x86_64: QgemmU8X8KernelAvx2.S,
  QgemvU8S8KernelAvx2.S, ConvSymKernelAvx2.S and their AVX512-core forms.)
- oneDNN (OpenVINO) takes the input channels two by two at each position of the window (jit_avx2,
  jit_sse42); convolutions in groups are matrix products (jit_gemm) with the pairs of MLAS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

PAIR_LIMIT = 128
"""The largest |w0 + w1| of one sign with which no uint8 activations saturate: 32767 // 255."""


def is_depthwise(shape: Sequence[int], groups: int) -> bool:
    """Return whether each output channel of a convolution reads one input channel of its own."""
    return len(shape) > 2 and shape[1] == 1 and shape[0] == groups


def consecutive_pairs(shape: Sequence[int], groups: int = 1) -> Tensor:
    """Return the pairs that MLAS forms in one output channel.

    Args:
        shape: shape of the weight: [out, in / groups, *kernel] of a convolution, [out, in] of a
            product.
        groups: groups of a convolution.

    Returns:
        int64 [pairs, 2], indices into `weight[o].flatten()`; none for depthwise convolutions.
    """
    if is_depthwise(shape, groups):
        return torch.zeros(0, 2, dtype=torch.int64)
    order = _by_position(shape).reshape(-1)
    return order[: len(order) // 2 * 2].reshape(-1, 2)


def channel_pairs(shape: Sequence[int], groups: int = 1) -> Tensor:
    """Return the pairs that oneDNN forms; arguments and result of `consecutive_pairs`."""
    if groups > 1:
        return consecutive_pairs(shape, groups)
    order = _by_position(shape)
    return order[:, : shape[1] // 2 * 2].reshape(-1, 2)


def saturating_pairs(shape: Sequence[int], groups: int = 1) -> Tensor:
    """Return the pairs of both; arguments and result of `consecutive_pairs`."""
    both = torch.cat([consecutive_pairs(shape, groups), channel_pairs(shape, groups)])
    pairs: Tensor = torch.unique(both, dim=0)
    return pairs


def excess(weight: Tensor, pairs: Tensor) -> Tensor:
    """Return by how much each pair exceeds PAIR_LIMIT, 0 if it does not.

    Args:
        weight: codes [out, ...], signed.
        pairs: int64 [pairs, 2], indices into `weight[o].flatten()`.

    Returns:
        int16 [out, pairs]: max(|w0 + w1| over the weights of one sign - 128, 0).
    """
    flat = weight.flatten(1)
    one, other = (flat[:, pairs[:, side]].to(torch.int16) for side in (0, 1))
    above = one.clamp(min=0) + other.clamp(min=0)
    below = one.clamp(max=0) + other.clamp(max=0)
    return torch.maximum(above, -below).sub_(PAIR_LIMIT).clamp_(min=0)


def _by_position(shape: Sequence[int]) -> Tensor:
    """Indices into `weight[o].flatten()`: [positions of the window, input channels]."""
    positions = math.prod(shape[2:])
    return torch.arange(shape[1] * positions).reshape(shape[1], positions).t()
