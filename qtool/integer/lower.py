"""From a QDQ model to the integer program.

Where the runtime fuses DequantizeLinear, an operator and QuantizeLinear into one integer kernel,
the program has one integer step; everything else runs as written. The rules are those of the
runtime: all data inputs come from codes, the result goes to one QuantizeLinear (a Relu or Clip
between that the quantization makes redundant is dropped), and on x86 int8 codes only count where
their QuantizeLinear has a single reader: the runtime turns those into uint8, and no others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch

from qtool.errors import FileError, KernelError
from qtool.integer.moves import MOVES, move_of
from qtool.integer.operators import OPERATORS, Bounds, Call, Operator
from qtool.integer.program import Program, Step
from qtool.integer.qdq import Codes, QdqGraph
from qtool.integer.runtime_node import runtime_node
from qtool.kernels import profile as profile_of
from qtool.types import QuantParams

__all__ = ["DEFAULT_PROFILE", "lower"]

DEFAULT_PROFILE = "onnxruntime-x64"
_SIGNED_PROFILES = frozenset({"tflite"})  # runtimes whose activations are int8
_CLAMPS = ("Relu", "Clip")


@dataclass
class _Lowering:
    graph: QdqGraph
    profile: Any
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    params: dict[str, QuantParams] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)  # nodes that are part of an integer step


def lower(model: onnx.ModelProto | str | Path, profile: str = DEFAULT_PROFILE) -> Program:
    """The integer program of a QDQ model, made by qtool or by another tool.

    Args:
        model: the model, or the path of its file.
        profile: "onnxruntime-x64", or "tflite" (uint8 codes are then held as int8).

    Raises:
        FileError: not a readable ONNX file.
        KernelError: a kernel cannot represent a node's parameters; names the node.
    """
    if not isinstance(model, onnx.ModelProto):
        try:
            model = onnx.load(model)
        except Exception as error:
            raise FileError(f"{model}: not a readable ONNX file ({error})") from error
    graph = QdqGraph(model, signed=profile in _SIGNED_PROFILES)
    work = _Lowering(graph, profile_of(profile))
    for node in graph.nodes:
        _lower_node(work, node)
    steps = _needed(work)
    labels = {s.output: graph.label(s.output) for s in steps}
    outputs = tuple(_output(work, name) for name in graph.outputs)
    return Program(
        profile, tuple(graph.inputs), outputs, steps, work.constants, work.params, labels
    )


def _lower_node(work: _Lowering, node: onnx.NodeProto) -> None:
    graph = work.graph
    if id(node) in work.done or all(o in graph.arrays for o in node.output):
        return
    try:
        if node.op_type == "QuantizeLinear":
            params = graph.params(node)
            _add(
                work,
                node,
                "quantize",
                work.profile.bind("quantize", params),
                node.input[:1],
                params,
            )
        elif node.op_type == "DequantizeLinear":
            _dequantize(work, node)
        elif not (_integer(work, node) or _moved_between(work, node) or _moved(work, node)):
            kernel, inputs = runtime_node(node, graph)
            _add(work, node, "float", kernel, inputs)
    except KernelError as error:
        where = node.name or node.output[0]
        message = str(error)
        raise KernelError(message if where in message else f"{where}: {message}") from error


def _dequantize(work: _Lowering, node: onnx.NodeProto) -> None:
    codes = work.graph.codes(node.output[0])
    assert codes is not None
    if codes.constant is not None:
        work.constants[node.output[0]] = codes.params.dequantize(codes.constant)
        return
    kernel = work.profile.bind("dequantize", codes.params)
    _add(work, node, "dequantize", kernel, node.input[:1])


def _integer(work: _Lowering, node: onnx.NodeProto) -> bool:
    operator = OPERATORS.get(node.op_type)
    if operator is None:
        return False
    inputs = _data_inputs(work, node, operator)
    if inputs is None or not _constants_in_codes(work.graph, node, operator):
        return False
    end = _quantized_by(work.graph, node)
    if end is None and not operator.float_output:
        return False
    if end is None and _reads_integer_bias(work.graph, node) is False:
        return False
    out = None if end is None else work.graph.params(end[0])
    if end is not None and not _counts(work.graph, end[0].output[0], out):
        return False
    if node.op_type == "MaxPool" and not _same(inputs[0].params, out):
        return False
    bounds: Bounds = (None, None) if end is None else end[1]
    kernel = operator.bind(Call(node, work.graph, work.profile, inputs, out, bounds))
    names = tuple(c.name for c in inputs if not (operator.weight and c is not inputs[0]))
    for codes in inputs:
        if codes.constant is not None:
            work.constants[codes.name] = codes.constant
    if end is None:
        _add(work, node, "integer", kernel, names)
        return True
    work.done |= {id(n) for n in end[2]}
    _add(work, end[0], "integer", kernel, names, out, name=node.name)
    return True


def _reads_integer_bias(graph: QdqGraph, node: onnx.NodeProto) -> bool | None:
    """Without an output quantization a float bias keeps the runtime's Gemm in float."""
    if len(node.input) < 3:
        return None
    return graph.codes(node.input[2]) is not None


def _data_inputs(work: _Lowering, node: onnx.NodeProto, operator: Operator) -> list[Codes] | None:
    """The codes of every data input, or None if one is float."""
    found = []
    names = list(node.input) if operator.inputs is None else list(node.input[: operator.inputs])
    for name in names:
        codes = work.graph.codes(name)
        if codes is None or not (
            codes.constant is not None or _counts(work.graph, codes.name, codes.params)
        ):
            return None
        found.append(codes)
    if node.op_type == "MatMul" and found[1].constant is not None and found[1].constant.dim() == 2:
        return found[:1]  # a weight
    return found


def _constants_in_codes(graph: QdqGraph, node: onnx.NodeProto, operator: Operator) -> bool:
    if not operator.weight:
        return True
    weight = graph.codes(node.input[1])
    return weight is not None and weight.constant is not None


def _counts(graph: QdqGraph, codes: str, params: QuantParams | None) -> bool:
    """Whether the runtime computes on these codes: uint8 always, int8 with one reader only."""
    maker = graph.makers.get(codes)
    signed = params is not None and params.qtype.signed
    if graph.signed or not signed or maker is None or maker.op_type != "QuantizeLinear":
        return True
    return len(graph.readers.get(codes, [])) == 1


def _quantized_by(
    graph: QdqGraph, node: onnx.NodeProto
) -> tuple[onnx.NodeProto, Bounds, list[onnx.NodeProto]] | None:
    """The QuantizeLinear behind a node, the bounds of a clamp between, and the nodes up to it."""
    reader, bounds, passed = graph.only_reader(node.output[0]), (None, None), []
    if reader is not None and reader.op_type in _CLAMPS:
        clamp = reader
        bounds, passed = _bounds(graph, clamp), [clamp]
        reader = graph.only_reader(clamp.output[0])
    if reader is None or reader.op_type != "QuantizeLinear":
        return None
    if passed and not _redundant(graph.params(reader), bounds):
        return None
    return reader, bounds, [*passed, reader]


def _bounds(graph: QdqGraph, clamp: onnx.NodeProto) -> Any:
    if clamp.op_type == "Relu":
        return (0.0, None)
    limits = [graph.constant(clamp, i) for i in (1, 2)]
    return tuple(None if v is None else float(v) for v in limits)


def _redundant(params: QuantParams, bounds: Bounds) -> bool:
    """Whether saturation of the codes does what the clamp does."""
    low, high = bounds
    scale, zero, qtype = params.scale, int(params.zero_point), params.qtype
    below = low is None or int(torch.round(torch.tensor(low) / scale)) + zero <= qtype.qmin
    above = high is None or int(torch.round(torch.tensor(high) / scale)) + zero >= qtype.qmax
    return below and above


def _moved_between(work: _Lowering, node: onnx.NodeProto) -> bool:
    """DequantizeLinear, a move, QuantizeLinear with the same parameters: a move of codes."""
    codes = work.graph.codes(node.input[0]) if node.input else None
    reader = work.graph.only_reader(node.output[0]) if node.output else None
    move = move_of(node, work.graph)
    if codes is None or codes.constant is not None or move is None or reader is None:
        return False
    if reader.op_type != "QuantizeLinear" or not _same(codes.params, work.graph.params(reader)):
        return False
    params = work.graph.params(reader)
    kernel = work.profile.bind("passthrough", codes.params, params, move)
    work.done.add(id(reader))
    _add(work, reader, "move", kernel, (codes.name,), params, name=node.name)
    return True


def _moved(work: _Lowering, node: onnx.NodeProto) -> bool:
    """A move as written, of codes or of floats; a Pad of codes."""
    source = node.input[0] if node.input else ""
    params = work.params.get(source)
    if node.op_type == "Pad" and params is not None:
        kernel = _pad_codes(work, node, params)
    elif node.op_type in MOVES and (move := move_of(node, work.graph)) is not None:
        kernel = move
    else:
        return False
    _add(work, node, "move", kernel, (source,), params)
    return True


def _pad_codes(work: _Lowering, node: onnx.NodeProto, params: QuantParams) -> Any:
    pads, fill = work.graph.constant(node, 1), work.graph.constant(node, 2)
    if pads is None or work.graph.attributes(node).get("mode", b"constant") != b"constant":
        raise KernelError(f"{node.name}: only constant padding of codes has a kernel")
    value = 0 if fill is None else int(fill)
    if work.graph.signed and node.op_type == "Pad":
        value -= 128 if fill is None or fill.dtype == "uint8" else 0
    return work.profile.bind("pad", params, params, pads=[int(p) for p in pads], value=value)


def _same(a: QuantParams, b: QuantParams | None) -> bool:
    return (
        b is not None
        and a.qtype is b.qtype
        and torch.equal(a.scale, b.scale)
        and torch.equal(a.zero_point, b.zero_point)
    )


def _add(
    work: _Lowering,
    node: onnx.NodeProto,
    kind: str,
    kernel: Any,
    inputs: Any,
    params: QuantParams | None = None,
    name: str = "",
) -> None:
    for each in inputs:
        if each in work.graph.arrays and each not in work.constants:
            work.constants[each] = torch.from_numpy(work.graph.arrays[each].copy())
    if params is not None:
        work.params[node.output[0]] = params
    work.steps.append(Step(name or node.name, kind, kernel, tuple(inputs), node.output[0]))


def _output(work: _Lowering, name: str) -> str:
    """The codes behind a dequantized output, or the output itself."""
    codes = work.graph.codes(name)
    return codes.name if codes is not None and codes.constant is None else name


def _needed(work: _Lowering) -> tuple[Step, ...]:
    """The steps that an output depends on: most dequantizations are part of integer steps."""
    needed = {_output(work, name) for name in work.graph.outputs}
    kept: list[Step] = []
    for step in reversed(work.steps):
        if step.output in needed:
            needed |= set(step.inputs)
            kept.append(step)
    for name in set(work.constants) - needed:
        del work.constants[name]
    return tuple(reversed(kept))
