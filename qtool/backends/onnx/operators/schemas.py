"""The ONNX operators that writers call, and those of other domains.

A writer is called while torch.onnx traces the graph, with values and constants in the order of the
operator's schema, and calls `op.Name(...)` for each node. onnxscript takes a second or two to
import, so it is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import onnx

Value = Any
"""A value of the traced graph, a constant, or None for an input that is left out. A name of `Any`,
since torch.onnx reads the annotations of writers and takes that for a tensor of any type."""

Writer = Callable[..., Value]
"""Writes an operator: takes values and constants in the order of its torch schema."""

TorchOperator = Callable[..., Any]
"""What a node of a torch graph calls: an operator of ATen or of qtool, or a function of Python."""

_KIND = onnx.defs.OpSchema.AttrType
_ELEMENTS = ("float", "double", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_ANY = [f"tensor({element})" for element in _ELEMENTS]


class _Operators:
    """`op.Conv(...)`: the operators of the opset that files are written in."""

    def __getattr__(self, name: str) -> Writer:
        from onnxscript import opset18

        writer: Writer = getattr(opset18, name)
        return writer


op = _Operators()


@cache
def onnx_operator(
    name: str,
    inputs: tuple[str, ...],
    attributes: tuple[tuple[str, str], ...] = (),
    outputs: int = 1,
    domain: str = "com.microsoft",
) -> Writer:
    """Return an operator that onnx has no schema of, by default of ONNX Runtime's domain.

    Args:
        name: operator type.
        inputs: names; each is optional, and of any type.
        attributes: name and kind, such as "INT".
        outputs: number of outputs.
        domain: domain of the operator.
    """
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
