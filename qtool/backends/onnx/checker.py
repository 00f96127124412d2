"""The checker of ONNX, and a limit on what functions expand to.

Decoders of onnxruntime-genai contain SimplifiedLayerNormalization.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import onnx
from onnx.defs import OpSchema, register_schema

from qtool.backends.onnx.nested_graphs import nested_nodes


def check_model(model: onnx.ModelProto, *, full_check: bool = False) -> None:
    """Check a model as `onnx.checker.check_model` does."""
    _register()
    onnx.checker.check_model(model, full_check=full_check)


@cache
def _register() -> None:
    name = "SimplifiedLayerNormalization"
    if onnx.defs.has(name):
        return
    types = [("T", ["tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)"], "")]
    optional = OpSchema.FormalParameterOption.Optional
    register_schema(
        OpSchema(
            name,
            "",
            1,
            inputs=[OpSchema.FormalParameter(i, "T") for i in ("X", "scale")],
            outputs=[
                OpSchema.FormalParameter("Y", "T"),
                OpSchema.FormalParameter("inv_std_var", "T", param_option=optional),
            ],
            type_constraints=types,
            attributes=[
                OpSchema.Attribute("axis", OpSchema.AttrType.INT, "", required=False),
                OpSchema.Attribute("epsilon", OpSchema.AttrType.FLOAT, "", required=False),
                OpSchema.Attribute("stash_type", OpSchema.AttrType.INT, "", required=False),
            ],
        )
    )


MAX_NODES = 1_000_000  # after functions are inlined


def function_expansion_error(model: onnx.ModelProto) -> str | None:
    """Return why the model's functions cannot be inlined, as ONNX Runtime does; None if they can.

    They are recursive, or expand to more than MAX_NODES nodes.
    """
    functions = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto], inside: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nested_nodes(nodes):
            key = (node.domain, node.op_type)
            if key in inside:
                raise RecursionError(f"function {node.op_type} of the file calls itself")
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key], inside | {key})
            total += sizes.get(key, 1)
        return total

    if not functions:
        return None
    try:
        total = size(model.graph.node, frozenset())
    except RecursionError as error:
        return str(error)
    if total <= MAX_NODES:
        return None
    return (
        f"the functions of the file expand to {total:,} nodes, the limit is {MAX_NODES:,}; check "
        "that this is the intended file"
    )
