"""A file whose kernels compute in float what it states in floats.

Some of the runtime's operators are products of floats by what they mean, and round their inputs to
int8 inside, each kernel in its own way. That is no matter of what is written; so what a file says
is read from one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper


def depends_on_threads(graph: onnx.GraphProto) -> bool:
    """Whether results differ by how many threads compute them: DynamicQuantizeLSTM deals samples
    out to threads, and each rounds the states of its own in their range."""
    return any(node.op_type == "DynamicQuantizeLSTM" for node in graph.node)


def has_input_rounding(graph: onnx.GraphProto) -> bool:
    """Whether a kernel of the graph rounds what it reads, and says nothing of it."""
    return any(node.op_type in _PLAIN and _rounds(node) for node in graph.node)


def disable_input_rounding(graph: onnx.GraphProto) -> None:
    """Rewrites such operators in place. The graph holds its weights."""
    stored = {i.name: i for i in graph.initializer}
    for node in graph.node:
        if node.op_type in _PLAIN and _rounds(node):
            _PLAIN[node.op_type](graph, node, stored)


def _rounds(node: onnx.NodeProto) -> bool:
    return node.op_type != "MatMulNBits" or _level(node) is not None


def _level(node: onnx.NodeProto) -> onnx.AttributeProto | None:
    return next((a for a in node.attribute if a.name == "accuracy_level" and a.i), None)


_Stored = Mapping[str, onnx.TensorProto]


def _matmul(graph: onnx.GraphProto, node: onnx.NodeProto, stored: _Stored) -> None:
    level = _level(node)
    assert level is not None
    level.i = 0


def _lstm(graph: onnx.GraphProto, node: onnx.NodeProto, stored: _Stored) -> None:
    """An LSTM on the floats that the codes mean. Weights that are computed stay."""
    if any(node.input[i] not in stored for i in (1, 2, 8, 9, 10, 11)):
        return
    for at, scale_at in ((1, 8), (2, 10)):
        codes, scale, zero = (
            numpy_helper.to_array(stored[node.input[i]]) for i in (at, scale_at, scale_at + 1)
        )
        off = codes.astype(np.int32) - zero.reshape(len(zero), 1, -1)
        real = off.astype(np.float32) * scale.reshape(len(scale), 1, -1)
        name = f"{node.input[at]}/real"
        if not any(i.name == name for i in graph.initializer):
            turned = np.ascontiguousarray(real.transpose(0, 2, 1))
            graph.initializer.append(numpy_helper.from_array(turned, name))
        node.input[at] = name
    del node.input[7:]
    node.op_type, node.domain = "LSTM", ""


_PLAIN: Mapping[str, Callable[[onnx.GraphProto, onnx.NodeProto, _Stored], None]] = {
    "DynamicQuantizeLSTM": _lstm,
    "MatMulNBits": _matmul,
}
