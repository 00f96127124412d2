"""The row of an ONNX operator: what the reader of files, ONNX Runtime's integer forms, the integer
engine, the audit and the workarounds know of it.

How a file is written is not here: writer and engine of QDQ files stay independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class OnnxOperator:
    """One operator type of ONNX.

    Attributes:
        key: key of its row in `qtool.core.ops`; "": none.
        unary: torch's operator of that row takes its input, then its attributes.
        attributes: name -> default, in the order of torch's arguments; kernels on codes take them,
            too.
        on_codes: operator type with which ONNX Runtime computes it on codes; "": none.
        codes: number of its leading inputs that are codes there; None: all.
        plain: that operator takes codes, scale and zero point of each input, scale and zero point
            of the output, and the attributes.
    """

    key: str = ""
    unary: bool = False
    attributes: Mapping[str, float] = field(default_factory=dict)
    on_codes: str = ""
    codes: int | None = 1
    plain: bool = False


ONNX_OPERATORS: Mapping[str, OnnxOperator] = {
    "Add": OnnxOperator(key="add", on_codes="QLinearAdd", codes=2, plain=True),
    "AveragePool": OnnxOperator(key="average_pool", on_codes="QLinearAveragePool"),
    "Concat": OnnxOperator(key="concat", on_codes="QLinearConcat", codes=None),
    "Conv": OnnxOperator(key="conv", on_codes="QLinearConv", codes=2),
    "Elu": OnnxOperator(key="elu", unary=True, attributes={"alpha": 1.0}),
    "Gemm": OnnxOperator(key="linear", on_codes="QGemm", codes=2),
    "GlobalAveragePool": OnnxOperator(
        key="global_average_pool", on_codes="QLinearGlobalAveragePool"
    ),
    "HardSwish": OnnxOperator(key="hard_swish", unary=True),
    "LeakyRelu": OnnxOperator(
        key="leaky_relu",
        unary=True,
        attributes={"alpha": 0.01},
        on_codes="QLinearLeakyRelu",
        plain=True,
    ),
    "MatMul": OnnxOperator(key="matmul", on_codes="QLinearMatMul", codes=2),
    "Mul": OnnxOperator(key="mul", on_codes="QLinearMul", codes=2, plain=True),
    "Relu": OnnxOperator(key="relu", unary=True),
    "Sigmoid": OnnxOperator(key="sigmoid", unary=True, on_codes="QLinearSigmoid", plain=True),
    "Softmax": OnnxOperator(key="softmax", on_codes="QLinearSoftmax"),
    "Tanh": OnnxOperator(key="tanh", unary=True),
    "Where": OnnxOperator(on_codes="QLinearWhere"),
}
"""Operator type -> row. Types without a row are known in one place alone."""

MOVES = frozenset(
    (
        *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Resize"),
        *("ReduceMax", "ReduceMin", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operator types that ONNX Runtime runs on codes as on floats: they move or choose values."""

ON_CODES: Mapping[str, str] = {
    row.on_codes: name for name, row in ONNX_OPERATORS.items() if row.on_codes
}
"""ONNX Runtime's operator type on codes -> the type that it computes."""
