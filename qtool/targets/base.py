"""What a target is: a runtime on a kind of hardware, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import fx

from qtool.types import QType

__all__ = ["KernelRule", "Target"]


def _no_objection(node: fx.Node) -> str | None:
    return None


@dataclass(frozen=True)
class KernelRule:
    """How the target runs one operator in integers.

    refuse: why this call of the operator has to stay in float, or None.
    follows: takes part only where an input already comes in codes (an add behind a convolution);
        otherwise the operator is worth quantizing its inputs for.
    float_output: the kernel can also give its result in float, without an output quantization.
    in_float: no integer kernel, but cheap enough to run in float between two integer kernels, so
        that its result is quantized again at once.
    """

    refuse: Callable[[fx.Node], str | None] = _no_objection
    follows: bool = False
    float_output: bool = False
    in_float: bool = False


@dataclass(frozen=True)
class Target:
    """The integer types a target computes with, and its integer kernels by operator key.

    no_kernel: operator key -> why it has none, where more can be said than "no integer kernel".
    on_codes: keys of pass-through operators that must be written on codes, between Q and DQ.
    rewrites: names of the passes that bring a graph to the forms this target is quick with.
    """

    name: str
    description: str
    activation: QType
    weight: QType
    bias: QType
    kernels: Mapping[str, KernelRule]
    no_kernel: Mapping[str, str]
    on_codes: frozenset[str]
    rewrites: tuple[str, ...]
    opset: int
    ir_version: int
