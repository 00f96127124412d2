"""The ONNX operators that writers call, and those of ONNX Runtime's domain.

A writer is called while torch.onnx traces the graph, with values and constants in the order of the
operator's schema, and calls `op.Name(...)` for each node. onnxscript takes a second or two to
import, so it is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import onnx

Writer = Callable[..., Any]
"""Writes an operator: takes values and constants in the order of its torch schema."""

_KIND = onnx.defs.OpSchema.AttrType
_ELEMENTS = ("float", "double", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_ANY = [f"tensor({element})" for element in _ELEMENTS]


class _Operators:
    """`op.Conv(...)`: the operators of the opset that files are written in."""

    def __getattr__(self, name: str) -> Any:
        from onnxscript import opset18

        return getattr(opset18, name)


op: Any = _Operators()


@cache
def contrib(
    name: str,
    inputs: tuple[str, ...] = ("X:T",),
    attributes: tuple[str, ...] = (),
    types: tuple[str, ...] = ("T:float",),
    kind: Any = _KIND.FLOAT,
) -> Any:
    """Return an operator of ONNX Runtime's domain (onnx has no schema) with one output "T".

    Args:
        name: operator type.
        inputs: "name:type variable", followed by "?" if optional.
        attributes: names.
        types: "type variable:element type".
        kind: type of all attributes.
    """
    import onnxscript

    parameter, option = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption
    parameters = []
    for text in inputs:
        input_name, _, type_name = text.rstrip("?").partition(":")
        optional = option.Optional if text.endswith("?") else option.Single
        parameters.append(parameter(input_name, type_name, param_option=optional))
    schema = onnx.defs.OpSchema(
        name,
        "com.microsoft",
        1,
        inputs=parameters,
        outputs=[parameter("Y", "T")],
        type_constraints=[
            (variable, [f"tensor({element})"], "")
            for variable, _, element in (t.partition(":") for t in types)
        ],
        attributes=[onnx.defs.OpSchema.Attribute(a, kind) for a in attributes],
    )
    return onnxscript.values.Op(onnxscript.values.Opset("com.microsoft", 1), name, schema)


@cache
def onnx_operator(
    domain: str,
    name: str,
    inputs: tuple[str, ...],
    outputs: int,
    attributes: tuple[tuple[str, str], ...],
) -> Any:
    """Return an operator of any domain: optional inputs of any type, attributes (name, kind)."""
    import onnxscript

    parameter, option = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption
    results = [f"{name}_{i}" for i in range(outputs)]
    schema = onnx.defs.OpSchema(
        name,
        domain,
        1,
        inputs=[parameter(n, f"T_{n}", param_option=option.Optional) for n in inputs],
        outputs=[parameter(n, f"T_{n}") for n in results],
        type_constraints=[(f"T_{n}", _ANY, "") for n in (*inputs, *results)],
        attributes=[
            onnx.defs.OpSchema.Attribute(a, getattr(_KIND, kind)) for a, kind in attributes
        ],
    )
    return onnxscript.values.Op(onnxscript.values.Opset(domain, 1), name, schema)
