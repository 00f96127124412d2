"""Rows of operators registered by the user, made from their torch schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.ops.row import Op
from qtool.core.remedies import CallEdit

_COMPOSITE = "CompositeImplicitAutograd"
_REASON = "a registered operator"


def custom_op_row(
    operator: Any,
    weights: Sequence[str] = (),
    channel_axis: int = 0,
    macs: Callable[..., int] | None = None,
) -> Op:
    """Return the row of a registered operator; arguments of `qtool.register_operator`.

    Raises:
        PlanError: the operator cannot be registered, or has no such weights.
    """
    target = _overload_of(operator)
    schema = target._schema
    key = str(schema.name)
    names = [a.name for a in schema.arguments]
    tensors = [i for i, a in enumerate(schema.arguments) if "Tensor" in str(a.type)]
    for name in weights:
        if name not in names or names.index(name) not in tensors:
            available = ", ".join(names[i] for i in tensors) or "none"
            raise PlanError(
                f"{key} has no tensor '{name}' to store as weights; it has: {available}"
            )
    positions = tuple(names.index(name) for name in sorted(weights, key=lambda n: n != "weight"))
    return Op(
        key=key,
        targets=(target,),
        inputs=tuple(i for i in tensors if i not in positions),
        weight=positions[0] if positions else None,
        extra_weights=positions[1:],
        channel_axis=channel_axis,
        weight_only_reason=_REASON if positions else "",
        macs=None if macs is None else _macs_of(macs),
        macs_known=macs is not None,
    )


def _overload_of(operator: Any) -> torch._ops.OpOverload:
    """Return the overload of an operator, "library::name" or definition of torch.library."""
    if isinstance(operator, str):
        library, _, name = operator.partition("::")
        name, _, overload = name.partition(".")
        try:
            operator = getattr(getattr(getattr(torch.ops, library), name), overload or "default")
        except AttributeError:
            raise PlanError(
                f"there is no torch operator '{operator}'",
                CallEdit("define it with torch.library before it is registered"),
                CallEdit("load its extension first"),
            ) from None
    operator = getattr(operator, "_opoverload", operator)  # what torch.library.custom_op returns
    if isinstance(operator, torch._ops.OpOverloadPacket):
        operator = operator.default
    if not isinstance(operator, torch._ops.OpOverload):
        raise PlanError(f"{operator!r} is no torch operator; define one with torch.library")
    schema = operator._schema
    if schema.is_mutable or not schema.returns:
        raise PlanError(
            f"{schema.name} changes its arguments", CallEdit("give one that returns new tensors")
        )
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _COMPOSITE):
        raise PlanError(
            f"torch decomposes {schema.name}, so it does not appear in a graph",
            CallEdit('register its function for "CompositeExplicitAutograd" or a device instead'),
        )
    return operator


def _macs_of(macs: Callable[..., int]) -> Callable[[fx.Node], int]:
    def of(argument: Any) -> Any:
        if isinstance(argument, fx.Node) and isinstance(G.value(argument), torch.Tensor):
            return tuple(G.hint(size) for size in G.shape(argument))
        return argument

    return lambda node: int(macs(*map(of, node.args)))
