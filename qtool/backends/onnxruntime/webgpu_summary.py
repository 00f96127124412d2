"""What a file does on ONNX Runtime's WebGPU provider, read from its operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx

from qtool.core.number_texts import quantity

_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear")
_INTEGER = frozenset(
    {"ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm"}
)
_LAYERS = {"Conv": "convolution", "Gemm": "linear layer", "MatMul": "product"}


def describe_on_webgpu(path: Path) -> str:
    """Return what runs in float, and what on the CPU provider, in a sentence.

    The provider has no QuantizeLinear and no integer convolutions or products (onnxruntime-webgpu
    1.27); `qtool verify --cpu webgpu` runs a file there.

    Args:
        path: an ONNX file.
    """
    nodes = onnx.load(path, load_external_data=False).graph.node
    counts = Counter(node.op_type for node in nodes)
    rounding = sum(counts[op] for op in _ROUNDING)
    integer = sum(n for op, n in counts.items() if op in _INTEGER or op.startswith("QLinear"))
    if not rounding + integer:
        return "nothing is rounded there; `qtool verify --cpu webgpu` runs the file"
    layers = [quantity(counts[op], word) for op, word in _LAYERS.items() if counts[op]]
    on_cpu = [quantity(rounding, "rounding")] if rounding else []
    on_cpu += [quantity(integer, "integer operator")] if integer else []
    in_float = f"{', '.join(layers)} in float, " if layers else ""
    return (
        f"{in_float}{' and '.join(on_cpu)} on the CPU provider, with copies; "
        "the target onnxruntime-webgpu has none"
    )
