"""Integer weights of linear layers in the order in which a runtime reads them.

WebAssembly has no packed weights, so that onnxruntime-web's QGemm transposes those of a Gemm with
transB again in every run: a layer of 768 by 768 takes 2.6 times as long for one row, 1.4 times for
16 (1.30.0; benchmarks/results/2026-11-webassembly.md).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir


def store_as_read(model: ir.Model) -> None:
    """Store the int8 weights of Gemm as [in, out], in place.

    A weight that several nodes read stays as it is.

    Args:
        model: QDQ model with Gemm layers whose weights are [out, in] (transB).
    """
    for layer in model.graph:
        weight = layer.inputs[1] if layer.op_type == "Gemm" else None
        maker = None if weight is None else weight.producer()
        if weight is None or maker is None or maker.op_type != "DequantizeLinear":
            continue
        codes, transposed = maker.inputs[0], layer.attributes.get("transB")
        stored = None if codes is None else codes.const_value
        if codes is None or stored is None or stored.dtype is not ir.DataType.INT8:
            continue
        is_alone = len(weight.uses()) == len(codes.uses()) == 1
        if transposed is None or not transposed.as_int() or not is_alone:
            continue
        shape = ir.Shape(stored.shape.numpy()[::-1])
        codes.const_value = ir.LazyTensor(
            partial(_transposed, stored), stored.dtype, shape, name=stored.name
        )
        for value in (codes, weight):  # theirs are of the former order
            value.shape = value.type = None
        layer.attributes["transB"] = ir.AttrInt64("transB", 0)
        maker.attributes.pop("axis", None)
        maker.attributes["axis"] = ir.AttrInt64("axis", 1)


def _transposed(stored: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(np.ascontiguousarray(stored.numpy().T))
