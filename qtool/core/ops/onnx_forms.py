"""What writers write with: ONNX's operators, and those of ONNX Runtime's own domain.

A writer is called while torch.onnx traces the graph, with values and constants in the order of the
operator's schema, and calls `op.Name(...)` for each node. onnxscript takes a second or two to
import, so that it is imported when the first of them is called.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx

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
    """An operator of ONNX Runtime's own domain, of which onnx has no schema; it gives one "T".

    Args:
        inputs: "name:type variable", with a "?" behind where it is optional.
        attributes: their names, all of one `kind`.
        types: "type variable:element type".
    """
    import onnxscript

    parameter, option = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption
    given = []
    for each in inputs:
        called, _, of = each.rstrip("?").partition(":")
        optional = option.Optional if each.endswith("?") else option.Single
        given.append(parameter(called, of, param_option=optional))
    schema = onnx.defs.OpSchema(
        name,
        "com.microsoft",
        1,
        inputs=given,
        outputs=[parameter("Y", "T")],
        type_constraints=[
            (of, [f"tensor({element})"], "") for of, _, element in (t.partition(":") for t in types)
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
    """An operator of any domain: inputs of any type, each optional; attributes as (name, kind)."""
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
