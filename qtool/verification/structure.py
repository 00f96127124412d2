"""What ONNX Runtime does not check of a QDQ file, and runs wrongly without a word.

A wrong channel axis and a wrong bias scale of a Gemm are accepted and give wrong numbers; a scale
that is no scalar makes the session fail after fusion; a float weight keeps its layer in float.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from qtool.errors import VerificationError
from qtool.onnx_graph.storage import outline
from qtool.targets.saturation import largest_pairs

__all__ = ["Expected", "check_structure", "check_well_formed"]

_AXIS = {"Conv": 0, "Gemm": 0}  # of the output channels in the weight; Gemm is written with transB


@dataclass(frozen=True)
class Expected:
    """What the target wants. integer_bias: biases are int32 codes. symmetric: activations have
    zero point 0. pair_limit: see `Target`."""

    integer_bias: bool = True
    symmetric: bool = False
    pair_limit: int | None = None


def check_structure(
    model: onnx.ModelProto, integer_nodes: set[str], expected: Expected = Expected()
) -> None:
    """Checks every integer node of a QDQ model, and every scale.

    Args:
        model: as exported.
        integer_nodes: names of the nodes that the plan computes in integers.
        expected: what the target wants.

    Raises:
        VerificationError: naming the node and what is wrong with it.
    """
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    makers = {o: n for n in model.graph.node for o in n.output}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            _check_scale(node, arrays, expected)
        if node.op_type == "MatMulInteger" and expected.pair_limit is not None:
            _check_pairs(node, arrays[node.input[1]], 1, expected.pair_limit)
        if node.name in integer_nodes and node.op_type in _AXIS:
            _check_layer(node, arrays, makers, expected)


def check_well_formed(model: onnx.ModelProto) -> None:
    """The ONNX checker, with inferred types and shapes against those written.

    Raises:
        VerificationError: in the checker's words.
    """
    try:
        onnx.checker.check_model(outline(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise VerificationError(f"the file is not well-formed ONNX: {error}") from error


def _check_scale(node: onnx.NodeProto, arrays: dict[str, Any], expected: Expected) -> None:
    scale = arrays.get(node.input[1])
    if scale is None:
        raise VerificationError(f"{node.name}: its scale is not a constant")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise VerificationError(f"{node.name}: its scale is not positive and finite: {scale}")
    if node.input[0] not in arrays and scale.ndim != 0:
        raise VerificationError(f"{node.name}: the scale of an activation must be a scalar")
    if expected.symmetric and arrays[node.input[2]].any():
        raise VerificationError(f"{node.name}: its zero point must be 0 on this target")


def _check_layer(
    node: onnx.NodeProto, arrays: dict[str, Any], makers: dict[str, Any], expected: Expected
) -> None:
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
    if expected.pair_limit is not None:
        _check_pairs(node, codes, axis, expected.pair_limit)
    if len(node.input) > 2 and expected.integer_bias:
        _check_bias(node, makers.get(node.input[2]), arrays, arrays[x.input[1]] * scale)
    elif len(node.input) > 2 and node.input[2] not in arrays:
        raise VerificationError(f"{node.name}: its bias is not a float constant")


def _check_pairs(node: onnx.NodeProto, codes: Any, axis: int, limit: int) -> None:
    pairs = largest_pairs(torch.from_numpy(codes.copy()), axis)
    if bool((pairs > limit).any()):
        raise VerificationError(
            f"{node.name}: two weights of channel {int(pairs.argmax())} sum to {int(pairs.max())}; "
            f"beyond {limit} their products saturate 16 bits on this target"
        )


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
