"""Comparison of two float32 runs of one network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.core.graph.deferred import has_deferred, outputs_of, run_deferred

COMPARED_SAMPLES = 8  # samples of the example on which two networks are compared
TOLERANCE = 1e-4  # of the output range: float32 rounding of re-associated sums
_FLIPPED_SHARE = 0.01  # of integers computed from floats (a class, a rank) that ties may change
NOISE_FACTOR = 10  # difference of two orders of computation, in multiples of random rounding


def dtype_tolerance(tensor: torch.Tensor) -> float:
    """Return the largest `distance` of two ways to compute a tensor: TOLERANCE, or two steps of its
    type if that is coarser."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    return max(TOLERANCE, 2 * torch.finfo(tensor.dtype).eps) if floats else TOLERANCE


def distance(expected: torch.Tensor, actual: torch.Tensor, usual: float = 0.0) -> float:
    """Return the largest difference relative to the range of `expected`, or to `usual` if that is
    larger.

    inf if the type, the shape or more than 1 % of integers differ. Equal infinities and NaNs are no
    difference.
    """
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    if not expected.is_floating_point() and not expected.is_complex():
        share = float((expected != actual).double().mean())
        return 0.0 if share <= _FLIPPED_SHARE else float("inf")
    kind = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.detach().to(kind), actual.detach().to(kind)
    span = max(span_of(a), usual, 1e-30)
    equal = (a == b) | (a.isnan() & b.isnan())
    difference = (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf")).where(~equal, 0.0)
    return float(difference.max()) / span


def span_of(tensor: torch.Tensor) -> float:
    """Return the range of the finite values and zero: the largest absolute value, or the width."""
    finite = tensor[tensor.isfinite()] if bool(tensor.isfinite().any()) else torch.zeros(1)
    span = float(finite.abs().max())
    return span if finite.is_complex() else max(span, float(finite.max() - finite.min()))


def largest_distance(
    expected: Sequence[torch.Tensor],
    actual: Sequence[torch.Tensor],
    usual: Sequence[torch.Tensor] = (),
) -> tuple[int, float]:
    """Return the position of the most distant pair and its distance; (0, 0.0) for no pairs.

    Args:
        expected, actual: the pairs.
        usual: the same outputs on another input, whose ranges count if they are larger: at other
            sizes a detector may detect nothing, and its scores are rounding errors.
    """
    spans = [span_of(t) if t.numel() and t.dtype.is_floating_point else 0.0 for t in usual]
    spans += [0.0] * (len(expected) - len(spans))
    distances = [distance(a, b, s) for a, b, s in zip(expected, actual, spans, strict=True)]
    return max(enumerate(distances), key=lambda pair: pair[1], default=(0, 0.0))


def float_tolerance(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """Return the rounding error of a network in float32, relative to the range of its outputs.

    It is the larger of two distances: to the same network in float64, and to itself with all
    weights and inputs perturbed by about their last bit; times NOISE_FACTOR, since two orders of
    the same sums may differ by more.
    """
    perturbed = _output_change(module, args, kwargs, last_bit_perturbation())
    in_float64 = _output_change(module, args, kwargs, torch.Tensor.double)
    # a distance of 1 is another function: a mask of the lowest float32 is none in float64
    in_float64 = in_float64 if in_float64 < 1 else 0.0
    return NOISE_FACTOR * max(perturbed if math.isfinite(perturbed) else 0.0, in_float64)


def last_bit_perturbation() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that perturbs each float of a tensor at random by about its last bit, and
    returns other tensors as they are."""
    generator = torch.Generator().manual_seed(0)

    def perturb(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float32).to(x.device) * 2 - 1
        return (x.detach() * (1 + 2 * noise * torch.finfo(x.dtype).eps)).to(x.dtype)

    return perturb


def _output_change(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    change: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    """Return the distance of the outputs after `change` of the float weights and inputs; 0 if the
    network does not run with them."""

    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    with torch.no_grad():
        expected = outputs_of(module, args, kwargs)
        try:
            outputs = _changed_outputs(module, args, kwargs, changed)
        except Exception:  # noqa: BLE001  # a network may insist on float32 anywhere
            return 0.0
    pairs = zip(expected, outputs, strict=True)
    both = ((a, b) for a, b in pairs if isinstance(a, torch.Tensor))
    floats = ((a, b) for a, b in both if a.is_floating_point())
    return max((distance(a, b.to(a.dtype)) for a, b in floats), default=0.0)


def _changed_outputs(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    changed: Callable[[Any], Any],
) -> list[Any]:
    """Return the flat outputs after a change of the weights and inputs."""
    if has_deferred(module):
        assert isinstance(module, fx.GraphModule)
        new_args, new_kwargs = pytree.tree_map(changed, (tuple(args), kwargs))
        return run_deferred(module, new_args, new_kwargs, changed)
    tensors = (*module.named_parameters(), *module.named_buffers())
    state = {name: changed(t.detach()) for name, t in tensors}
    new_args, new_kwargs = pytree.tree_map(changed, (tuple(args), kwargs))
    return pytree.tree_leaves(torch.func.functional_call(module, state, new_args, new_kwargs))
