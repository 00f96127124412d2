"""Torch operator -> writer of its ONNX form: what torch.onnx does not write; custom operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from qtool.backends.onnx.operators import attention, elementwise, layers, moves
from qtool.backends.onnx.operators.schemas import TorchOperator, Writer, onnx_operator
from qtool.core import ops
from qtool.core.errors import PlanError
from qtool.core.ops import Op
from qtool.core.remedies import CallEdit

WRITERS: dict[TorchOperator, Writer] = {
    **attention.WRITERS,
    **elementwise.WRITERS,
    **layers.WRITERS,
    **moves.WRITERS,
}
"""Forms of ONNX's own operators."""

CONTRIB: Mapping[TorchOperator, Writer] = {
    **attention.CONTRIB,
    **elementwise.CONTRIB,
    **layers.CONTRIB,
}
"""Forms in ONNX Runtime's domain, for targets that allow it."""


def writers(contrib: bool) -> Mapping[TorchOperator, Writer]:
    """Return torch operator -> ONNX form; `contrib` allows operators of ONNX Runtime's domain."""
    return {**WRITERS, **CONTRIB} if contrib else WRITERS


Body = Writer | onnx.FunctionProto | Sequence[Any]
"""How an operator is written in a file: see `qtool.register_operator`."""

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


@dataclass(frozen=True, eq=False)
class CustomForm:
    """How an operator registered by the user is written.

    Attributes:
        domain: domain of its node in the file; "" if it is written as several nodes.
        name: operator type of that node.
        functions: ONNX functions that define the node in the file.
        kernel: implementation on float tensors for the integer engine; None: ONNX Runtime runs it.
    """

    domain: str = ""
    name: str = ""
    functions: tuple[onnx.FunctionProto, ...] = ()
    kernel: Callable[..., Any] | None = None


CUSTOM_FORMS: dict[TorchOperator, CustomForm] = {}
"""Torch operator -> form, of the operators registered by the user."""


def register_custom_operator(row: Op, body: Body, kernel: Callable[..., Any] | None = None) -> None:
    """Add a row (see `qtool.core.ops.custom_op_row`) and its ONNX form.

    Raises:
        PlanError: the operator is registered already, or contradicts its body.
    """
    (target,) = row.targets
    schema, functions = target._schema, _functions(body)
    if functions:
        _check(schema, functions[0])
    elif not callable(body):
        raise PlanError(
            f"{row.key} has no ONNX form", CallEdit("give a function, or one that writes its nodes")
        )
    elif kernel is not None:
        raise PlanError(
            f"{row.key} has a kernel but no node of its own", CallEdit("give an ONNX function")
        )
    if target in WRITERS and target not in ops.OPS:
        raise PlanError(
            f"{target} is registered already (written by qtool)", CallEdit("register it once")
        )
    ops.register(row)
    first = functions[0] if functions else onnx.FunctionProto()
    WRITERS[target] = _node_writer(schema, first) if functions else body  # type: ignore[assignment]  # a callable, see above
    CUSTOM_FORMS[target] = CustomForm(first.domain, first.name, functions, kernel)


def functions_of(nodes: Iterable[tuple[str, str]]) -> list[onnx.FunctionProto]:
    """Return the ONNX functions that define nodes (domain, name) of a file; see CustomForm."""
    forms = (_form(*node) for node in dict.fromkeys(nodes))
    return [function for form in forms if form is not None for function in form.functions]


def kernel_of(domain: str, name: str) -> Callable[..., Any] | None:
    """Return the kernel of the integer engine for a node of a file; None: ONNX Runtime runs it."""
    form = _form(domain, name)
    return None if form is None else form.kernel


def _form(domain: str, name: str) -> CustomForm | None:
    forms = CUSTOM_FORMS.values()
    return next((f for f in forms if domain and (f.domain, f.name) == (domain, name)), None)


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
        raise PlanError(f"{where} has no domain", CallEdit("give it one of its own"))
    if unsupported := [name for name, kind in kinds.items() if kind is None]:
        raise PlanError(
            f"{where} cannot take '{unsupported[0]}'",
            CallEdit("give a function that writes its nodes"),
        )
    if len(function.input) != len(inputs) or len(function.output) != len(schema.returns):
        raise PlanError(
            f"{where} has {len(function.input)} inputs and {len(function.output)} outputs, "
            f"the operator {len(inputs)} tensors and {len(schema.returns)} "
            "results",
            CallEdit("make them agree"),
        )
    if different := sorted(attributes ^ (set(kinds) - set(inputs))):
        raise PlanError(
            f"{where} and the operator differ in '{different[0]}'",
            CallEdit("name its attributes as the operator's arguments that are no tensors"),
        )


def _node_writer(schema: Any, function: onnx.FunctionProto) -> Writer:
    """Return a writer of one node named as the function: tensors are inputs, others attributes."""
    arguments = list(schema.arguments)
    inputs = tuple(a.name for a in arguments if _kind(a) == "tensor")
    kinds = tuple((a.name, str(_kind(a))) for a in arguments if a.name not in inputs)

    def write(*args: Any, **kwargs: Any) -> Any:
        values = {a.name: a.default_value for a in arguments if a.has_default_value()}
        values |= dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        node = onnx_operator(function.name, inputs, kinds, len(schema.returns), function.domain)
        attributes = {name: values[name] for name, _ in kinds if values[name] is not None}
        return node(*(values[name] for name in inputs), **attributes)

    return write
