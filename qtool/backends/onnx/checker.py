"""The ONNX checker, with the operator that ONNX Runtime adds to the domain of ONNX.

Decoders of onnxruntime-genai contain SimplifiedLayerNormalization.
"""

from __future__ import annotations

from functools import cache

import onnx
from onnx.defs import OpSchema, register_schema


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
