"""The patterns of a QDQ model that ONNX Runtime fuses into integer kernels.

All data inputs of an operator are dequantized codes and its result goes to one QuantizeLinear. A
Relu or Clip between them is dropped where the quantization makes it redundant. On x86 and in
WebAssembly int8 codes match only where the runtime turns them into uint8
(`QdqGraph.becomes_uint8`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from qtool.backends.kernels.params import same_params
from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import array_of, input_at
from qtool.backends.onnxruntime.integer_engine.operators import (
    OPERATORS,
    SIGNED_OPERATORS,
    Operator,
    move_of,
)
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph, QuantizedTensor
from qtool.core.quant_params import QuantParams
from qtool.core.types import Bounds

_CLAMPS = ("Relu", "Clip")


@dataclass(frozen=True, eq=False)
class IntegerOperator:
    """An operator that runs on codes.

    Attributes:
        node: the operator.
        operator: how it is bound to a kernel.
        inputs: its data inputs.
        quantizer: the QuantizeLinear behind it, None where the result is float.
        out: parameters of the result.
        bounds: limits of a clamp between operator and quantizer.
        absorbed: the nodes behind the operator that the kernel replaces.
        duplicates: further QuantizeLinear nodes of equal codes; the runtime merges them.
    """

    node: Node
    operator: Operator
    inputs: list[QuantizedTensor]
    quantizer: Node | None
    out: QuantParams | None
    bounds: Bounds
    absorbed: tuple[Node, ...]
    duplicates: tuple[Node, ...] = ()


@dataclass(frozen=True, eq=False)
class MoveOnCodes:
    """DequantizeLinear, an operator that moves elements, QuantizeLinear of equal parameters."""

    node: Node
    codes: QuantizedTensor
    move: Callable[..., torch.Tensor]
    quantizer: Node
    params: QuantParams


def match_operator(graph: QdqGraph, node: Node) -> IntegerOperator | None:
    """Return the integer operator around `node`, None if it runs in float."""
    operator = (SIGNED_OPERATORS if graph.signed else OPERATORS).get(node.op_type)
    if operator is None:
        return None
    inputs = _data_inputs(graph, node, operator)
    if inputs is None or not _constants_in_codes(graph, node, operator):
        return None
    quantizers, bounds, clamps = _quantized_by(graph, node)
    if not quantizers:
        is_integer = operator.float_output and _reads_integer_bias(graph, node) is not False
        return (
            IntegerOperator(node, operator, inputs, None, None, bounds, ()) if is_integer else None
        )
    quantizer, *duplicates = quantizers
    out = graph.params(quantizer)
    if not _computes_on(graph, quantizer.outputs[0], out):
        return None
    types = {c.params.qtype.dtype for c in inputs} | {out.qtype.dtype}
    if not operator.fits(inputs[0].params, out) or (
        not graph.signed and len(types) > 1 and not operator.mixed_types
    ):
        return None
    absorbed = (*clamps, *quantizers)
    return IntegerOperator(
        node, operator, inputs, quantizer, out, bounds, absorbed, tuple(duplicates)
    )


def match_move(graph: QdqGraph, node: Node) -> MoveOnCodes | None:
    """Return the move of codes around `node`, or None."""
    codes = graph.codes(input_at(node, 0))
    quantizer = graph.model.only_reader(node.outputs[0]) if node.outputs else None
    move = move_of(node)
    if codes is None or codes.constant is not None or move is None or quantizer is None:
        return None
    if quantizer.op_type != "QuantizeLinear" or not same_params(
        codes.params, graph.params(quantizer)
    ):
        return None
    return MoveOnCodes(node, codes, move, quantizer, graph.params(quantizer))


def _reads_integer_bias(graph: QdqGraph, node: Node) -> bool | None:
    """Return whether the bias is in codes: else a Gemm of float output stays float."""
    if len(node.inputs) < 3:
        return None
    return graph.codes(node.inputs[2]) is not None


def _data_inputs(graph: QdqGraph, node: Node, operator: Operator) -> list[QuantizedTensor] | None:
    """Return every data input in codes, None if one is float."""
    inputs = []
    for value in node.inputs[: operator.inputs]:
        codes = graph.codes(value)
        if codes is None or not (
            codes.constant is not None or _computes_on(graph, codes.value, codes.params)
        ):
            return None
        inputs.append(codes)
    if node.op_type == "MatMul":
        weight = inputs[1].constant
        if weight is not None and weight.dim() == 2:
            return inputs[:1]
    return inputs


def _constants_in_codes(graph: QdqGraph, node: Node, operator: Operator) -> bool:
    if not operator.weight:
        return True
    weight = graph.codes(input_at(node, 1))
    return weight is not None and weight.constant is not None


def _computes_on(graph: QdqGraph, codes: Value, params: QuantParams | None) -> bool:
    """Return whether the runtime computes on these codes.

    It does on uint8, and on int8 where it has kernels for that (ARM) or converts it to uint8.
    """
    producer = codes.producer
    unsigned = params is None or not params.qtype.signed
    if graph.signed or graph.int8_kernels or unsigned:
        return True
    if producer is None or producer.op_type != "QuantizeLinear":
        return True
    return graph.becomes_uint8(producer)


def _quantized_by(graph: QdqGraph, node: Node) -> tuple[list[Node], Bounds, tuple[Node, ...]]:
    """Return the QuantizeLinear nodes behind `node`, and the bounds and node of a clamp between."""
    reader, bounds = graph.model.only_reader(node.outputs[0]), (None, None)
    clamps: tuple[Node, ...] = ()
    if reader is not None and reader.op_type in _CLAMPS:
        bounds, clamps = _bounds(reader), (reader,)
    quantizers = graph.quantizers(clamps[0].outputs[0] if clamps else node.outputs[0])
    if not quantizers or (clamps and not _redundant(graph.params(quantizers[0]), bounds)):
        return [], (None, None), ()
    return quantizers, bounds, clamps


def _bounds(clamp: Node) -> Any:
    if clamp.op_type == "Relu":
        return (0.0, None)
    limits = [array_of(input_at(clamp, i)) for i in (1, 2)]
    return tuple(None if v is None else float(v) for v in limits)


def _redundant(params: QuantParams, bounds: Bounds) -> bool:
    """Return whether saturation of the codes implies the clamp."""
    low, high = bounds
    scale, zero, qtype = params.scale, int(params.zero_point), params.qtype
    below = (
        low is None
        or int(torch.round(torch.tensor(low, dtype=torch.float32) / scale)) + zero <= qtype.qmin
    )
    above = (
        high is None
        or int(torch.round(torch.tensor(high, dtype=torch.float32) / scale)) + zero >= qtype.qmax
    )
    return below and above
