"""Tensors of an ONNX file whose values may jump when the last bit of an input changes."""

from __future__ import annotations

from qtool.backends.onnx.reading import OnnxModel, name_of, values_read

_DISCONTINUOUS = frozenset(
    [
        *("ArgMax", "ArgMin", "Cast", "Ceil", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"),
        *("Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod"),
        *("MatMulIntegerToFloat", "MatMulNBits", "NonMaxSuppression", "NonZero", "Round"),
        *("Sign", "TopK"),
    ]
)
"""Operators that round inside, or whose results jump when the last bit of an input changes."""


def discontinuous_tensors(file: OnnxModel) -> set[str]:
    """Return the tensors that depend on a discontinuous operator after the last quantization."""
    names: set[str] = set()
    for node in file.nodes:
        if node.op_type in _DISCONTINUOUS or (
            node.op_type != "DequantizeLinear" and names & set(map(name_of, values_read(node)))
        ):
            names |= {name_of(o) for o in node.outputs}
    return names
