"""The parts of a QDQ model that ONNX Runtime fuses into integer kernels.

All data inputs of an operator come from codes, the result goes to one QuantizeLinear (a Relu or
Clip between that the quantization makes redundant is dropped), and on x86 and in WebAssembly
int8 codes only count where the runtime turns them into uint8 (`QdqGraph.becomes_uint8`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from qtool.backends.onnx.reading import array_of, input_at
from qtool.backends.onnxruntime.integer_engine.moves import move_of
from qtool.backends.onnxruntime.integer_engine.operators import (
    OPERATORS,
    SIGNED_OPERATORS,
    Operator,
    equal_params,
)
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph, QuantizedTensor
from qtool.core.types import Bounds, QuantParams

_CLAMPS = ("Relu", "Clip")


@dataclass(frozen=True, eq=False)
class IntegerOperator:
    """An operator that runs on codes.

    inputs: codes of its data inputs. end: the QuantizeLinear behind it, None where the result is
    float. bounds: of a clamp between. covered: the nodes behind the operator that it stands for.
    twins: more of them that give the same codes, one for each reader; the runtime makes them one.
    """

    node: ir.Node
    operator: Operator
    inputs: list[QuantizedTensor]
    quantizer: ir.Node | None
    out: QuantParams | None
    bounds: Bounds
    absorbed: tuple[ir.Node, ...]
    duplicates: tuple[ir.Node, ...] = ()


@dataclass(frozen=True, eq=False)
class MoveOnCodes:
    """DequantizeLinear, an operator that moves elements, QuantizeLinear of equal parameters."""

    node: ir.Node
    codes: QuantizedTensor
    move: Callable[..., torch.Tensor]
    quantizer: ir.Node
    params: QuantParams


def match_operator(graph: QdqGraph, node: ir.Node) -> IntegerOperator | None:
    """The integer operator that `node` is the heart of, or None if it runs in float."""
    operator = (SIGNED_OPERATORS if graph.signed else OPERATORS).get(node.op_type)
    if operator is None:
        return None
    inputs = _data_inputs(graph, node, operator)
    if inputs is None or not _constants_in_codes(graph, node, operator):
        return None
    ends, bounds, passed = _quantized_by(graph, node)
    if not ends:
        whole = operator.float_output and _reads_integer_bias(graph, node) is not False
        return IntegerOperator(node, operator, inputs, None, None, bounds, ()) if whole else None
    end, *twins = ends
    out = graph.params(end)
    if not _counts(graph, end.outputs[0], out):
        return None
    types = {c.params.qtype.torch_dtype for c in inputs} | {out.qtype.torch_dtype}
    if not operator.fits(inputs[0].params, out) or (
        not graph.signed and len(types) > 1 and not operator.mixed_types
    ):
        return None
    covered = (*passed, *ends)
    return IntegerOperator(node, operator, inputs, end, out, bounds, covered, tuple(twins))


def match_move(graph: QdqGraph, node: ir.Node) -> MoveOnCodes | None:
    """The move of codes that `node` is the heart of, or None."""
    codes = graph.codes(input_at(node, 0))
    end = graph.model.only_reader(node.outputs[0]) if node.outputs else None
    move = move_of(node)
    if codes is None or codes.constant is not None or move is None or end is None:
        return None
    if end.op_type != "QuantizeLinear" or not equal_params(codes.params, graph.params(end)):
        return None
    return MoveOnCodes(node, codes, move, end, graph.params(end))


def _reads_integer_bias(graph: QdqGraph, node: ir.Node) -> bool | None:
    """Without an output quantization a float bias keeps the runtime's Gemm in float."""
    if len(node.inputs) < 3:
        return None
    return graph.codes(node.inputs[2]) is not None


def _data_inputs(
    graph: QdqGraph, node: ir.Node, operator: Operator
) -> list[QuantizedTensor] | None:
    """The codes of every data input, or None if one is float."""
    found = []
    for value in node.inputs[: operator.inputs]:
        codes = graph.codes(value)
        if codes is None or not (
            codes.constant is not None or _counts(graph, codes.value, codes.params)
        ):
            return None
        found.append(codes)
    if node.op_type == "MatMul" and found[1].constant is not None and found[1].constant.dim() == 2:
        return found[:1]  # a weight
    return found


def _constants_in_codes(graph: QdqGraph, node: ir.Node, operator: Operator) -> bool:
    if not operator.weight:
        return True
    weight = graph.codes(input_at(node, 1))
    return weight is not None and weight.constant is not None


def _counts(graph: QdqGraph, codes: ir.Value, params: QuantParams | None) -> bool:
    """Whether the runtime computes on these codes: uint8, and int8 where it has kernels for that
    (ARM) or makes uint8 of it."""
    maker = codes.producer()
    unsigned = params is None or not params.qtype.signed
    if graph.signed or graph.int8_kernels or unsigned:
        return True
    if maker is None or maker.op_type != "QuantizeLinear":
        return True
    return graph.becomes_uint8(maker)


def _quantized_by(
    graph: QdqGraph, node: ir.Node
) -> tuple[list[ir.Node], Bounds, tuple[ir.Node, ...]]:
    """The QuantizeLinear behind a node (and its twins), the bounds of a clamp between, and that."""
    reader, bounds = graph.model.only_reader(node.outputs[0]), (None, None)
    passed: tuple[ir.Node, ...] = ()
    if reader is not None and reader.op_type in _CLAMPS:
        bounds, passed = _bounds(reader), (reader,)
    ends = graph.quantizers(passed[0].outputs[0] if passed else node.outputs[0])
    if not ends or (passed and not _redundant(graph.params(ends[0]), bounds)):
        return [], (None, None), ()
    return ends, bounds, passed


def _bounds(clamp: ir.Node) -> Any:
    if clamp.op_type == "Relu":
        return (0.0, None)
    limits = [array_of(input_at(clamp, i)) for i in (1, 2)]
    return tuple(None if v is None else float(v) for v in limits)


def _redundant(params: QuantParams, bounds: Bounds) -> bool:
    """Whether saturation of the codes does what the clamp does."""
    low, high = bounds
    scale, zero, qtype = params.scale, int(params.zero_point), params.qtype
    below = low is None or int(torch.round(torch.tensor(low) / scale)) + zero <= qtype.qmin
    above = high is None or int(torch.round(torch.tensor(high) / scale)) + zero >= qtype.qmax
    return below and above
