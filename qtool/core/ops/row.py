"""The row of an operator: everything that qtool knows of it, read by all packages above.

How a format writes an operator is a table of that format's backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import fx

from qtool.core.schemes import When
from qtool.core.types import Bounds


def _unbounded(node: fx.Node) -> Bounds:
    return None, None


class Role(Enum):
    """What an operator does with integer codes."""

    COMPUTE = "compute"  # arithmetic: the output has new codes
    JOIN = "join"  # concatenation: inputs may share the output's parameters
    PASS = "pass"  # data movement: input and output share parameters
    CLIP = "clip"  # a clamp, free where the quantization of its output saturates at its bounds


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """One operator.

    Attributes:
        key: its name in targets, plans, kernels and reports.
        targets: torch operators with equal arguments.
        role: what it does with codes.
        inputs: positions of the data arguments.
        weight: position of the weight; None without one.
        bias: position of the bias; None without one.
        extra_weights: positions of further weights with the same axes: the recurrent weight.
        channel_axis: axis of the weight's output channels.
        supported_modes: modes that a recipe may request besides static quantization.
        weight_only_reason: why only its weights are quantized on targets without a kernel for it
            that give no reason of their own; "": it stays in float there.
        from_codes: operator that takes codes and scales in place of the weight and dequantizes only
            what it reads. Without it the whole weight is dequantized before the operator, and a
            bias is added behind it.
        from_blocks: the same for weights in blocks, as `torch_ops.linear_nbits`: packed codes,
            scales and zero points in place of the weight, number of bits last.
        on_codes: (call, codes, code of zero) -> operator and arguments of its form between Q and
            DQ; None: the codes of its input are those of its output.
        scale_factor: position of the number that multiplies the scale of its codes.
        bounds: call -> bounds of its result.
        spatial: it works on an image [N, C, *spatial].
        homogeneous: it works channel by channel, and a positive factor of a channel of its input is
            a factor of that channel of its result.
        flat: it works element by element, and stays next to a layer whose input is flattened.
        in_place: its form that overwrites the first argument, with the same kernel; None: none.
        macs: call -> multiply-accumulates at the captured sizes; None: none.
        macs_known: False: without `macs`, its work is not known.
    """

    key: str
    targets: tuple[Any, ...]
    role: Role = Role.COMPUTE
    inputs: tuple[int, ...] = (0,)
    weight: int | None = None
    bias: int | None = None
    extra_weights: tuple[int, ...] = ()
    channel_axis: int = 0
    supported_modes: frozenset[When] = frozenset()
    weight_only_reason: str = ""
    from_codes: Any = None
    from_blocks: Any = None
    on_codes: Callable[[fx.Node, fx.Node, int], tuple[Any, tuple[Any, ...]]] | None = None
    scale_factor: int | None = None
    bounds: Callable[[fx.Node], Bounds] = _unbounded
    spatial: bool = False
    homogeneous: bool = False
    flat: bool = False
    in_place: Any = None
    macs: Callable[[fx.Node], int] | None = None
    macs_known: bool = True
