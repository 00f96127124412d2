"""Operators that round their inputs inside the kernel, and their replacement by float ones.

Some operators of ONNX Runtime are defined as products of floats, but their kernels round the inputs
to int8, each in its own way. The file as written is run without that rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper


def depends_on_threads(graph: onnx.GraphProto) -> bool:
    """Return whether results depend on the number of threads.

    DynamicQuantizeLSTM distributes samples to threads, and each rounds its states in their range.
    """
    return any(node.op_type == "DynamicQuantizeLSTM" for node in graph.node)


def has_input_rounding(graph: onnx.GraphProto) -> bool:
    """Return whether a kernel of the graph rounds its float inputs."""
    return any(node.op_type in _REWRITES and _rounds(node) for node in graph.node)


def disable_input_rounding(graph: onnx.GraphProto) -> None:
    """Rewrite such operators in place. The graph has to contain its weights."""
    constants = {i.name: i for i in graph.initializer}
    for node in graph.node:
        if node.op_type in _REWRITES and _rounds(node):
            _REWRITES[node.op_type](graph, node, constants)


def _rounds(node: onnx.NodeProto) -> bool:
    if node.op_type == "QMoE":
        return any(a.name == "expert_weight_bits" and a.i == 8 for a in node.attribute)
    return node.op_type != "MatMulNBits" or _level(node) is not None


def _level(node: onnx.NodeProto) -> onnx.AttributeProto | None:
    return next((a for a in node.attribute if a.name == "accuracy_level" and a.i), None)


_WEIGHTS = (2, 5)  # inputs of QMoE

_Constants = Mapping[str, onnx.TensorProto]


def _matmul(graph: onnx.GraphProto, node: onnx.NodeProto, constants: _Constants) -> None:
    level = _level(node)
    assert level is not None
    level.i = 0


def _experts(graph: onnx.GraphProto, node: onnx.NodeProto, constants: _Constants) -> None:
    """With 8 bits the kernel rounds from 1.31 on, except where it cannot pack its weights at load:
    where they are inputs with a default."""
    for name in (node.input[i] for i in _WEIGHTS if node.input[i] in constants):
        stored = constants[name]
        graph.input.append(
            onnx.helper.make_tensor_value_info(name, stored.data_type, list(stored.dims))
        )


def _lstm(graph: onnx.GraphProto, node: onnx.NodeProto, constants: _Constants) -> None:
    """Replace it by an LSTM with dequantized weights, if the weights are constants."""
    if any(node.input[i] not in constants for i in (1, 2, 8, 9, 10, 11)):
        return
    for at, scale_at in ((1, 8), (2, 10)):
        codes, scale, zero = (
            numpy_helper.to_array(constants[node.input[i]]) for i in (at, scale_at, scale_at + 1)
        )
        centered = codes.astype(np.int32) - zero.reshape(len(zero), 1, -1)
        real = centered.astype(np.float32) * scale.reshape(len(scale), 1, -1)
        name = f"{node.input[at]}/real"
        if not any(i.name == name for i in graph.initializer):
            transposed = np.ascontiguousarray(real.transpose(0, 2, 1))
            graph.initializer.append(numpy_helper.from_array(transposed, name))
        node.input[at] = name
    del node.input[7:]
    node.op_type, node.domain = "LSTM", ""


_REWRITES: Mapping[str, Callable[[onnx.GraphProto, onnx.NodeProto, _Constants], None]] = {
    "DynamicQuantizeLSTM": _lstm,
    "MatMulNBits": _matmul,
    "QMoE": _experts,
}
