"""The quantization parameters that an ONNX file holds, whoever made it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtool.errors import FileError

__all__ = ["TensorParameters", "parameters"]


@dataclass(frozen=True)
class TensorParameters:
    """One quantized tensor: its integer type, scales and zero points."""

    tensor: str
    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]

    def row(self) -> tuple[str, str, str, str]:
        return self.tensor, self.dtype, _few(self.scales), _few(self.zero_points)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _few(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return f"{values[0]:.6g}"
    low, high = min(values), max(values)
    return (
        f"{low:.6g} ({len(values)})" if low == high else f"{low:.4g} .. {high:.4g} ({len(values)})"
    )


def parameters(path: str | Path) -> list[TensorParameters]:
    """Every tensor that a DequantizeLinear of the file reads, in order, each once.

    Raises:
        FileError: not an ONNX file.
    """
    try:
        model = onnx.load(path)
    except Exception as error:
        raise FileError(f"{path}: not a readable ONNX file ({error})") from error
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    found: dict[str, TensorParameters] = {}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear" or node.input[1] not in arrays:
            continue
        name, scale = node.input[0], arrays[node.input[1]]
        has_zero = len(node.input) > 2 and node.input[2] in arrays
        zero = arrays[node.input[2]] if has_zero else np.zeros(scale.shape, np.uint8)
        dtype = arrays[name].dtype if name in arrays else zero.dtype
        scales = tuple(map(float, np.ravel(scale)))
        found[name] = TensorParameters(name, str(dtype), scales, tuple(map(int, np.ravel(zero))))
    return list(found.values())
