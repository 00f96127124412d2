"""From a QDQ model to the integer program.

Where the runtime fuses DequantizeLinear, an operator and QuantizeLinear into one integer kernel,
the program has one integer step (see patterns.py); everything else runs as written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

from qtool.errors import KernelError
from qtool.integer.islands import join
from qtool.integer.moves import MOVES, move_of
from qtool.integer.operators import Call
from qtool.integer.patterns import fused, moved
from qtool.integer.program import Program, Step
from qtool.integer.qdq import Codes, QdqGraph
from qtool.integer.runtime_node import runtime_graph
from qtool.kernels import profile as profile_of
from qtool.onnx_graph.storage import load
from qtool.ops import kernel_of
from qtool.types import QuantParams

__all__ = ["DEFAULT_PROFILE", "lower"]

DEFAULT_PROFILE = "onnxruntime-x64"
_FLOAT_RESULTS = frozenset({"onnxruntime-x64"})  # whose integer Gemm may give float
_SIGNED_PROFILES = frozenset({"tflite", "tflite-2"})  # runtimes whose activations are int8


@dataclass
class _Lowering:
    graph: QdqGraph
    profile: Any
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    real: dict[str, Codes] = field(
        default_factory=dict
    )  # dequantized where they are read as floats
    params: dict[str, QuantParams] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)  # nodes that are part of an integer step
    in_runtime: dict[str, onnx.NodeProto] = field(default_factory=dict)  # see islands.py


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
        model = load(model)
    graph = QdqGraph(model, signed=profile in _SIGNED_PROFILES)
    work = _Lowering(graph, profile_of(profile))
    for node in graph.nodes:
        _lower_node(work, node)
    for name in graph.outputs:
        if name in graph.arrays:  # the same whatever the input: anchors, say
            work.constants[name] = torch.from_numpy(graph.arrays[name].copy())
    steps = join(_needed(work), work.in_runtime, graph)
    labels = {o: graph.label(o) for s in steps for o in s.outputs}
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
            _float(work, node)
    except KernelError as error:
        where = node.name or node.output[0]
        message = str(error)
        raise KernelError(message if where in message else f"{where}: {message}") from error


def _float(work: _Lowering, node: onnx.NodeProto) -> None:
    """A node in the runtime's own kernel; one from outside in the kernel that came with it."""
    graph = work.graph
    outputs = [o for o in node.output if o and (o in graph.readers or o in graph.outputs)]
    own = kernel_of(node.domain, node.op_type)
    if own is not None:
        given = [i for i in node.input if i]
        here = [bool(i) for i in node.input]
        run = partial(_run_own, own, here, graph.attributes(node))
        _add(work, node, "float", run, given, outputs=list(node.output))
    elif outputs:
        kernel, inputs = runtime_graph([node], graph, outputs, {})
        work.in_runtime[outputs[0]] = node
        _add(work, node, "float", kernel, inputs, outputs=outputs)


def _run_own(
    kernel: Callable[..., Any],
    given: Sequence[bool],
    attributes: Mapping[str, Any],
    *values: torch.Tensor,
) -> Any:
    """A kernel from outside: None for inputs that were left out, text for what a file holds as
    bytes."""
    left = iter(values)
    texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    return kernel(*(next(left) if here else None for here in given), **texts)


def _dequantize(work: _Lowering, node: onnx.NodeProto) -> None:
    codes = work.graph.codes(node.output[0])
    assert codes is not None
    if codes.constant is not None:
        work.real[node.output[0]] = codes
        return
    kernel = work.profile.bind("dequantize", codes.params)
    _add(work, node, "dequantize", kernel, node.input[:1])


def _integer(work: _Lowering, node: onnx.NodeProto) -> bool:
    found = fused(work.graph, node)
    if found is None or (found.end is None and work.profile.name not in _FLOAT_RESULTS):
        return False
    call = Call(node, work.graph, work.profile, found.inputs, found.out)
    kernel = found.operator.bind(call)
    weight = found.operator.weight
    names = tuple(c.name for c in found.inputs if not (weight and c is not found.inputs[0]))
    for codes in found.inputs:
        if codes.constant is not None:
            work.constants[codes.name] = codes.constant
    if found.end is None:
        _add(work, node, "integer", kernel, names)
        return True
    work.done |= {id(n) for n in found.covered}
    _add(work, found.end, "integer", kernel, names, found.out, name=node.name)
    return True


def _moved_between(work: _Lowering, node: onnx.NodeProto) -> bool:
    found = moved(work.graph, node)
    if found is None:
        return False
    kernel = work.profile.bind("passthrough", found.codes.params, found.params, found.move)
    work.done.add(id(found.end))
    _add(work, found.end, "move", kernel, (found.codes.name,), found.params, name=node.name)
    return True


def _moved(work: _Lowering, node: onnx.NodeProto) -> bool:
    """A move as written, of codes or of floats; a Pad of codes."""
    source = node.input[0] if node.input else ""
    params = work.params.get(source)
    if node.op_type == "Pad" and params is not None:
        kernel = _pad_codes(work, node, params)
    elif node.op_type in MOVES and (move := move_of(node, work.graph)) is not None:
        kernel = move
        if params is None:
            work.in_runtime[node.output[0]] = node
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


def _add(
    work: _Lowering,
    node: onnx.NodeProto,
    kind: str,
    kernel: Any,
    inputs: Any,
    params: QuantParams | None = None,
    name: str = "",
    outputs: Sequence[str] | None = None,
) -> None:
    for each in inputs:
        if each in work.graph.arrays and each not in work.constants:
            work.constants[each] = torch.from_numpy(work.graph.arrays[each])
    outputs = outputs or node.output[:1]
    if params is not None:
        work.params[outputs[0]] = params
    work.steps.append(Step(name or node.name, kind, kernel, tuple(inputs), tuple(outputs)))


def _output(work: _Lowering, name: str) -> str:
    """The codes behind a dequantized output, or the output itself."""
    codes = work.graph.codes(name)
    return codes.name if codes is not None and codes.constant is None else name


def _needed(work: _Lowering) -> tuple[Step, ...]:
    """The steps that an output depends on: most dequantizations are part of integer steps."""
    needed = {_output(work, name) for name in work.graph.outputs}
    kept: list[Step] = []
    for step in reversed(work.steps):
        if needed & set(step.outputs):
            needed |= set(step.inputs)
            kept.append(step)
    for name, codes in work.real.items():
        if name in needed and codes.constant is not None:
            work.constants[name] = codes.params.dequantize(codes.constant)
    for name in set(work.constants) - needed:
        del work.constants[name]
    return tuple(reversed(kept))
