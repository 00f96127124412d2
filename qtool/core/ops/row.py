"""What qtool knows of an operator: one row, read by every room above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx
from torch import fx

from qtool.core.schemes import When
from qtool.core.types import Bounds

Writer = Callable[..., Any]
"""The ONNX form of an operator: a function in the order of its schema (see onnx_forms.py)."""


def _unbounded(node: fx.Node) -> Bounds:
    return None, None


class Role(Enum):
    """What happens to codes in an operator."""

    COMPUTE = "compute"  # codes in, arithmetic, new codes out
    JOIN = "join"  # codes side by side: inputs that can have the output's parameters are copied
    PASS = "pass"  # the same codes at other places: input and output share parameters
    CLIP = "clip"  # a clamp, free when the quantization of its output already saturates there


@dataclass(frozen=True, eq=False)
class CustomOp:
    """An operator from outside that is kept whole in the file.

    Attributes:
        domain, name: the node that it is written as; "" where it is written as several nodes.
        functions: bodies that give the node its meaning in the file.
        kernel: what the integer engine runs for the node, on float tensors; None: the runtime.
    """

    domain: str = ""
    name: str = ""
    functions: tuple[onnx.FunctionProto, ...] = ()
    kernel: Callable[..., Any] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """One operator.

    Attributes:
        key: its name in targets, plans, kernels and reports.
        targets: the torch operators that are it, alike in their arguments.
        role: what happens to codes in it.
        inputs: positions of the data arguments.
        weight, bias: positions of constant arguments; the weight's output channels lie along
            `channel_axis`.
        more: positions of further weights, alike in their axes: a recurrent layer has one for its
            state.
        otherwise: what a recipe may ask for besides static quantization.
        stored: why its weights alone are stored as codes, on targets that have no kernel for it
            and say nothing themselves; "" leaves it in float there.
        from_codes: the operator with codes and scales in place of the weight, which dequantizes no
            more than it reads. Other stored weights are dequantized as a whole, before the
            operator; a bias is then added behind it.
        from_blocks: the same on codes in blocks, as `torch_ops.linear_nbits` has them: with packed
            codes, scales and zero points in place of the weight, and the number of bits last.
        on_codes: for what is written between Q and DQ: (call, codes, code of zero) -> operator and
            arguments; None: its codes are those of its input.
        factor: position of the number that multiplies the scale of its codes.
        bounds: the bounds that a call puts on its result.
        macs: multiply-accumulates of a call at the captured sizes.
        onnx: its ONNX form; None where torch.onnx has the right one.
        contrib: its form in ONNX Runtime's own domain, for targets that take it.
        kept: for an operator from outside, what it becomes in the file.
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
    macs: Callable[[fx.Node], int] | None = None
    onnx: Writer | None = None
    contrib: Writer | None = None
    custom_op: CustomOp | None = None
