"""What ONNX Runtime does not check of a QDQ file, and runs wrongly without a word.

A wrong channel axis and a wrong bias scale of a Gemm are accepted and give wrong numbers; a scale
that is no scalar makes the session fail after fusion; a float weight keeps its layer in float.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtool.errors import VerificationError

__all__ = ["check_structure"]

_AXIS = {"Conv": 0, "Gemm": 0}  # of the output channels in the weight; Gemm is written with transB


def check_structure(model: onnx.ModelProto, integer_nodes: set[str]) -> None:
    """Checks every integer node of a QDQ model, and every scale.

    Args:
        model: as exported.
        integer_nodes: names of the nodes that the plan computes in integers.

    Raises:
        VerificationError: naming the node and what is wrong with it.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise VerificationError(f"the file is not well-formed ONNX: {error}") from error
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    makers = {o: n for n in model.graph.node for o in n.output}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            _check_scale(node, arrays)
        if node.name in integer_nodes and node.op_type in _AXIS:
            _check_layer(node, arrays, makers)


def _check_scale(node: onnx.NodeProto, arrays: dict[str, Any]) -> None:
    scale = arrays.get(node.input[1])
    if scale is None:
        raise VerificationError(f"{node.name}: its scale is not a constant")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise VerificationError(f"{node.name}: its scale is not positive and finite: {scale}")
    if node.input[0] not in arrays and scale.ndim != 0:
        raise VerificationError(f"{node.name}: the scale of an activation must be a scalar")


def _check_layer(node: onnx.NodeProto, arrays: dict[str, Any], makers: dict[str, Any]) -> None:
    x, weight = makers.get(node.input[0]), makers.get(node.input[1])
    for what, maker in (("input", x), ("weight", weight)):
        if maker is None or maker.op_type != "DequantizeLinear":
            raise VerificationError(f"{node.name}: its {what} is not dequantized from codes")
    assert x is not None
    assert weight is not None
    codes, scale = arrays[weight.input[0]], arrays[weight.input[1]]
    axis = _AXIS[node.op_type]
    if codes.dtype != np.int8:
        raise VerificationError(f"{node.name}: its weight is {codes.dtype}, not int8")
    if scale.ndim and (_axis(weight) != axis or scale.shape[0] != codes.shape[axis]):
        raise VerificationError(
            f"{node.name}: weight scales along axis {_axis(weight)}, output channels on axis {axis}"
        )
    if node.op_type == "Gemm" and not any(a.name == "transB" and a.i == 1 for a in node.attribute):
        raise VerificationError(f"{node.name}: Gemm without transB, its channel axis is not 0")
    if len(node.input) > 2:
        _check_bias(node, makers.get(node.input[2]), arrays, arrays[x.input[1]] * scale)


def _check_bias(node: onnx.NodeProto, bias: Any, arrays: dict[str, Any], expected: Any) -> None:
    if (
        bias is None
        or bias.op_type != "DequantizeLinear"
        or arrays[bias.input[0]].dtype != np.int32
    ):
        raise VerificationError(f"{node.name}: its bias is not dequantized from int32")
    if not np.array_equal(arrays[bias.input[1]], expected.astype(np.float32)):
        raise VerificationError(f"{node.name}: its bias scale is not input scale x weight scale")


def _axis(node: onnx.NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "axis"), 1)


def float_weights(model: onnx.ModelProto) -> Iterator[str]:
    """Initializers of a heavy operator that are stored in float."""
    constants = {i.name for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT}
    for node in model.graph.node:
        if node.op_type in _AXIS and len(node.input) > 1 and node.input[1] in constants:
            yield node.input[1]
