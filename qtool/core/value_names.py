"""The grammar of names in a file of qtool, written and read here alone.

A layer or tensor of the user's model is called as in the model: `layer1.0.conv2`. What quantization
adds is called after it: the weight point `conv2.weight` stores `conv2.weight.codes`, its parameters
`conv2.weight.scale` and `conv2.weight.zero_point`, and the nodes around a tensor `conv2` are
`conv2.quantize` and `conv2.dequantize`. An operator written as several nodes gives its name to the
last; the others are `layer/Op:output`.
"""

from __future__ import annotations

_QUANTIZE, _DEQUANTIZE = ".quantize", ".dequantize"
_FOREIGN = ("_QuantizeLinear", "_DequantizeLinear", "_quant")  # as ONNX Runtime's own tool names


def codes(point: str) -> str:
    """The stored integers of a weight, bias or constant."""
    return f"{point}.codes"


def scale(point: str) -> str:
    return f"{point}.scale"


def zero_point(point: str) -> str:
    return f"{point}.zero_point"


def quantize(tensor: str) -> str:
    """The QuantizeLinear of a tensor, and the codes it makes."""
    return f"{tensor}{_QUANTIZE}"


def dequantize(point: str) -> str:
    """The DequantizeLinear behind a point, and what it makes."""
    return f"{point}{_DEQUANTIZE}"


def quant_point(point: str) -> str:
    """The call of a quant point in a prepared torch graph."""
    return f"{point}.quant"


def helper(operator: str, op_type: str, output: str) -> str:
    """One of several nodes that an operator is written as, but the last; and what it makes."""
    return f"{operator}/{op_type}:{output}"


def operator_of(node: str, op_type: str) -> str:
    """The operator that a node was written for: the reverse of `helper`."""
    return node.partition(f"/{op_type}:")[0]


def tensor_of(made: str) -> str:
    """A tensor as the user knows it, of the tensor itself or of its codes."""
    return made.removesuffix(_QUANTIZE)


def base_of(name: str) -> str | None:
    """What a Q or DQ stands at, in files of qtool and of ONNX Runtime's tool; None for others."""
    for suffix in (_QUANTIZE, _DEQUANTIZE, *_FOREIGN):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return None
