"""Rows of operators registered by the user, made from their torch schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.errors import PlanError
from qtool.core.ops.onnx_forms import onnx_operator
from qtool.core.ops.row import CustomOp, Op, Writer

Body = Writer | onnx.FunctionProto | Sequence[Any]
"""How an operator is written in a file: see `qtool.register_operator`."""

_COMPOSITE = "CompositeImplicitAutograd"
_REASON = "a registered operator"
_KINDS = {
    "int": "INT",
    "SymInt": "INT",
    "bool": "INT",
    "float": "FLOAT",
    "str": "STRING",
    "List[int]": "INTS",
    "List[float]": "FLOATS",
}
"""Type in a torch schema -> kind of an ONNX attribute."""


def custom_op_row(
    operator: Any,
    body: Body,
    weights: Sequence[str] = (),
    channel_axis: int = 0,
    macs: Callable[..., int] | None = None,
    kernel: Callable[..., Any] | None = None,
) -> Op:
    """Return the row of a registered operator; arguments of `qtool.register_operator`.

    Raises:
        PlanError: the operator, its body and its weights contradict each other.
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
    functions = _functions(body)
    if functions:
        _check(schema, functions[0])
    elif not callable(body):
        raise PlanError(f"{key} has no ONNX form; give a function, or one that writes its nodes")
    elif kernel is not None:
        raise PlanError(f"{key} has a kernel but no node of its own; give an ONNX function")
    first = functions[0] if functions else onnx.FunctionProto()
    return Op(
        key=key,
        targets=(target,),
        inputs=tuple(i for i in tensors if i not in positions),
        weight=positions[0] if positions else None,
        extra_weights=positions[1:],
        channel_axis=channel_axis,
        weight_only_reason=_REASON if positions else "",
        macs=None if macs is None else _macs_of(macs),
        onnx=_node_writer(schema, first) if functions else body,  # type: ignore[arg-type]  # a callable, see above
        custom_op=CustomOp(first.domain, first.name, functions, kernel),
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
                f"there is no torch operator '{operator}'; define it with torch.library, or load "
                "its extension, before it is registered"
            ) from None
    operator = getattr(operator, "_opoverload", operator)  # what torch.library.custom_op returns
    if isinstance(operator, torch._ops.OpOverloadPacket):
        operator = operator.default
    if not isinstance(operator, torch._ops.OpOverload):
        raise PlanError(f"{operator!r} is no torch operator; define one with torch.library")
    schema = operator._schema
    if schema.is_mutable or not schema.returns:
        raise PlanError(f"{schema.name} changes its arguments; give one that returns new tensors")
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _COMPOSITE):
        raise PlanError(
            f"torch decomposes {schema.name}, so it does not appear in a graph; register "
            'its function for "CompositeExplicitAutograd" or a device instead'
        )
    return operator


def _functions(body: Body) -> tuple[onnx.FunctionProto, ...]:
    """Return the ONNX functions of a node, the operator's first; none for a writer."""
    parts: list[Any] = list(body) if isinstance(body, list | tuple) else [body]
    protos = [p.to_function_proto() if hasattr(p, "to_function_proto") else p for p in parts]
    if not all(isinstance(p, onnx.FunctionProto) for p in protos):
        return ()
    return tuple(protos)


def _kind(argument: Any) -> str | None:
    """Return "tensor", the kind of the argument's ONNX attribute, or None for neither."""
    text = str(argument.type)
    text = text[len("Optional[") : -1] if text.startswith("Optional[") else text
    return "tensor" if text == "Tensor" else _KINDS.get(text)


def _check(schema: Any, function: onnx.FunctionProto) -> None:
    where = f"the ONNX function {function.domain}::{function.name} of {schema.name}"
    kinds = {a.name: _kind(a) for a in schema.arguments}
    inputs = [name for name, kind in kinds.items() if kind == "tensor"]
    attributes = {*function.attribute, *(a.name for a in function.attribute_proto)}
    if not function.domain:
        raise PlanError(f"{where} has no domain; give it one of its own")
    if unsupported := [name for name, kind in kinds.items() if kind is None]:
        raise PlanError(
            f"{where} cannot take '{unsupported[0]}'; give a function that writes its nodes"
        )
    if len(function.input) != len(inputs) or len(function.output) != len(schema.returns):
        raise PlanError(
            f"{where} has {len(function.input)} inputs and {len(function.output)} outputs, the "
            f"operator {len(inputs)} tensors and {len(schema.returns)} results; make them agree"
        )
    if different := sorted(attributes ^ (set(kinds) - set(inputs))):
        raise PlanError(
            f"{where} and the operator differ in '{different[0]}'; name its attributes as "
            "the operator's arguments that are no tensors"
        )


def _node_writer(schema: Any, function: onnx.FunctionProto) -> Writer:
    """Return a writer of one node named as the function: tensors are inputs, others attributes."""
    arguments = list(schema.arguments)
    inputs = tuple(a.name for a in arguments if _kind(a) == "tensor")
    kinds = tuple((a.name, str(_kind(a))) for a in arguments if a.name not in inputs)

    def write(*args: Any, **kwargs: Any) -> Any:
        values = {a.name: a.default_value for a in arguments if a.has_default_value()}
        values |= dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        node = onnx_operator(function.domain, function.name, inputs, len(schema.returns), kinds)
        attributes = {name: values[name] for name, _ in kinds if values[name] is not None}
        return node(*(values[name] for name in inputs), **attributes)

    return write


def _macs_of(macs: Callable[..., int]) -> Callable[[fx.Node], int]:
    def of(argument: Any) -> Any:
        if isinstance(argument, fx.Node) and isinstance(G.value(argument), torch.Tensor):
            return tuple(G.hint(size) for size in G.shape(argument))
        return argument

    return lambda node: int(macs(*map(of, node.args)))
