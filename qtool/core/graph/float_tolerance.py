"""Whether two runs of one network agree, as far as float32 can."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

COMPARED_SAMPLES = 8  # samples of an example on which two networks have to agree
TOLERANCE = 1e-4  # of the output range: float32 rounding of re-associated sums, no more
_FLIPPED_SHARE = (
    0.01  # of integers that a model makes of floats (a class, a rank): ties round anywhere
)
NOISE_FACTOR = 10  # how far apart roundings in other places may lie, in roundings at random


def dtype_tolerance(tensor: torch.Tensor) -> float:
    """What may lie between two ways to compute a tensor, as `distance` counts: where a type is
    coarser than that, two of its steps."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    return max(TOLERANCE, 2 * torch.finfo(tensor.dtype).eps) if floats else TOLERANCE


def distance(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference relative to the range of `expected`; inf where the type, the shape or
    more than a few integers differ. Infinities and NaNs that agree are no difference."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    if not expected.is_floating_point() and not expected.is_complex():
        share = float((expected != actual).double().mean())
        return 0.0 if share <= _FLIPPED_SHARE else float("inf")
    kind = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.detach().to(kind), actual.detach().to(kind)
    finite = a[a.isfinite()] if bool(a.isfinite().any()) else torch.zeros(1)
    span = float(finite.abs().max())
    if not finite.is_complex():
        span = max(span, float(finite.max() - finite.min()))
    span = max(span, 1e-30)
    equal = (a == b) | (a.isnan() & b.isnan())
    off = (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf")).where(~equal, 0.0)
    return float(off.max()) / span


def largest_distance(
    expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]
) -> tuple[int, float]:
    """The position of the pair that differs most, and by how much; (0, 0.0) of none."""
    pairs = [distance(a, b) for a, b in zip(expected, actual, strict=True)]
    return max(enumerate(pairs), key=lambda pair: pair[1], default=(0, 0.0))


def float_tolerance(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """What float32 leaves open in a network, relative to the range of its outputs: how far it is
    from itself in float64, or, where that is more, how far its outputs move where every weight and
    input moves by about its last bit; times the number of such distances that two orders of the
    same sums may be apart."""
    moved = _output_change(module, args, kwargs, last_bit_perturbation())
    wide = _output_change(module, args, kwargs, torch.Tensor.double)
    # what is another function in float64 (a mask of the lowest float32) tells nothing
    found = (moved if math.isfinite(moved) else 0.0, wide if wide < 1 else 0.0)
    return NOISE_FACTOR * max(found)


def last_bit_perturbation() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that moves each float of a tensor at random by about its last bit; what is not of
    floats stays as it is."""
    generator = torch.Generator().manual_seed(0)

    def moved(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        away = torch.rand(x.shape, generator=generator, dtype=torch.float32).to(x.device) * 2 - 1
        return (x.detach() * (1 + 2 * away * torch.finfo(x.dtype).eps)).to(x.dtype)

    return moved


def _output_change(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    change: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    """How far the outputs move with the floats of weights and inputs; 0 if it does not run so."""

    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    tensors = (*module.named_parameters(), *module.named_buffers())
    state = {name: changed(t.detach()) for name, t in tensors}
    with torch.no_grad():
        plain = pytree.tree_leaves(module(*args, **kwargs))
        given, named = pytree.tree_map(changed, (tuple(args), kwargs))
        try:
            other = pytree.tree_leaves(torch.func.functional_call(module, state, given, named))
        except Exception:  # noqa: BLE001  # a network may insist on float32 anywhere
            return 0.0
    pairs = [(a, b) for a, b in zip(plain, other, strict=True) if isinstance(a, torch.Tensor)]
    floats = [distance(a, b.to(a.dtype)) for a, b in pairs if a.is_floating_point()]
    return max(floats, default=0.0)
