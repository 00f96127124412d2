"""Integer weights of linear layers in the order in which a runtime reads them.

WebAssembly has no packed weights, so that onnxruntime-web's QGemm transposes those of a Gemm with
transB again in every run: a layer of 768 by 768 takes 2.6 times as long for one row, 1.4 times for
16 (1.30.0; benchmarks/results/2026-11-webassembly.md).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper


def store_as_read(model: onnx.ModelProto) -> None:
    """Store the int8 weights of Gemm as [in, out], in place.

    A weight that several nodes read stays as it is.

    Args:
        model: QDQ model with Gemm layers whose weights are [out, in] (transB).
    """
    graph = model.graph
    makers = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input)
    for layer in graph.node:
        maker = makers.get(layer.input[1]) if layer.op_type == "Gemm" else None
        codes = None if maker is None else constants.get(maker.input[0])
        if maker is None or codes is None or codes.data_type != onnx.TensorProto.INT8:
            continue
        transpose = [a for a in layer.attribute if a.name == "transB" and a.i]
        is_alone = readers[layer.input[1]] == readers[codes.name] == 1
        if not transpose or not is_alone:
            continue
        array = np.ascontiguousarray(numpy_helper.to_array(codes).T)
        codes.CopyFrom(numpy_helper.from_array(array, codes.name))
        transpose[0].i = 0
        axis = [a for a in maker.attribute if a.name == "axis"]
        for attribute in axis:
            maker.attribute.remove(attribute)
        maker.attribute.append(helper.make_attribute("axis", 1))
        shapes = [v for v in graph.value_info if v.name in (layer.input[1], codes.name)]
        for value in shapes:  # of the former order
            graph.value_info.remove(value)
