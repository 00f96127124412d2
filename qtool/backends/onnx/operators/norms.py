"""Normalization behind a residual connection."""

from __future__ import annotations

from typing import Any

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator
from qtool.core.ops.norms import skip_rms_norm


def _write(x: Any, skip: Any, weight: Any, eps: float) -> Any:
    name, inputs = "SkipSimplifiedLayerNormalization", ("input", "skip", "gamma")
    write = onnx_operator(name, inputs, (("epsilon", "FLOAT"),), 4)
    normalized, _, _, total = write(x, skip, weight, epsilon=eps)
    return normalized, total


CONTRIB: dict[Any, Writer] = {skip_rms_norm: _write}
