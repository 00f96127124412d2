"""Workaround for onnxruntime-web: integer weights that a Gemm reads transposed.

Runtime: onnxruntime-web, seen in 1.30.0, QGemm with transB (Gemm between Q and DQ).
Defect: WebAssembly has no packed weights, so that each run transposes them again: a layer of 768 by
768 takes 2.6 times as long for one row and 1.4 times for 16.
Rewrite: the codes are stored as [in, out], with their scales along the other axis.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qtool.backends.onnx.reading import array_of, attributes_of, input_at
from qtool.backends.workaround import Workaround


def store_as_read(model: ir.Model) -> None:
    """Store the int8 weights of Gemm as [in, out], in place; those that others read stay."""
    for layer in [n for n in model.graph if n.op_type == "Gemm"]:
        weight = input_at(layer, 1)
        maker = None if weight is None else weight.producer()
        if maker is None or maker.op_type != "DequantizeLinear":
            continue
        codes = input_at(maker, 0)
        array = array_of(codes)
        alone = all(v is not None and len(v.uses()) == 1 for v in (weight, codes))
        if not alone or array is None or array.dtype != np.int8 or not _transposed(layer):
            continue
        assert codes is not None
        assert weight is not None
        codes.const_value = ir.tensor(np.ascontiguousarray(array.T), name=codes.name)
        codes.shape = ir.Shape(array.T.shape)
        weight.shape = None
        layer.attributes["transB"] = ir.AttrInt64("transB", 0)
        maker.attributes["axis"] = ir.AttrInt64("axis", 1)


def _transposed(layer: ir.Node) -> bool:
    return bool(attributes_of(layer).get("transB", 0))


TRANSPOSED_WEIGHTS = Workaround(
    key="transposed-weights",
    package="onnxruntime-web",
    reason="QGemm transposes its weight in each run in WebAssembly",
    rewrite=store_as_read,
    seen_in="1.30.0",
)
