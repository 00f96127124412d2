"""From a QDQ model to the integer program.

Where the runtime fuses DequantizeLinear, an operator and QuantizeLinear into one integer kernel,
the program has one integer step (see patterns.py); everything else runs as written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx_ir as ir
import torch

from qtool.backends.onnx.reading import (
    OnnxModel,
    Source,
    array_of,
    attributes_of,
    input_at,
    is_constant,
    name_of,
)
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.integer_engine.float_boundary_nodes import bind_node
from qtool.backends.onnxruntime.integer_engine.float_islands import join_islands
from qtool.backends.onnxruntime.integer_engine.fusion_patterns import match_move, match_operator
from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction, Program
from qtool.backends.onnxruntime.integer_engine.moves import MOVES, move_of
from qtool.backends.onnxruntime.integer_engine.operators import OperatorCall
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph, QuantizedTensor
from qtool.backends.onnxruntime.integer_engine.runtime_node import runtime_graph
from qtool.backends.profiles import Profile
from qtool.backends.profiles import profile as profile_of
from qtool.core import value_names
from qtool.core.errors import KernelError
from qtool.core.ops import kernel_of
from qtool.core.types import Array, QuantParams

_ON_CODES = ("QLinear", "QGemm")  # how the runtime's operators of the QOperator format begin


@dataclass
class _Lowering:
    graph: QdqGraph
    profile: Any
    as_written: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    dequantized: dict[str, QuantizedTensor] = field(
        default_factory=dict
    )  # dequantized where they are read as floats
    params: dict[str, QuantParams] = field(default_factory=dict)
    absorbed: set[ir.Node] = field(default_factory=set)  # nodes that are part of an integer step
    in_runtime: dict[str, ir.Node] = field(default_factory=dict)  # see islands.py


def lower(model: Source, profile: str | Profile | None = None, as_written: bool = False) -> Program:
    """The integer program of a QDQ model, made by qtool or by another tool.

    Args:
        model: the model, read or not, or the path of its file.
        profile: the numerics profile (`qtool.backends.profiles.PROFILES`); by default that of ONNX
            Runtime on this processor. Of x86, int8 codes are held as uint8 where the runtime does
            so; of "tflite", uint8 codes are held as int8.
        as_written: floats times a dequantized weight stay so, where the runtime would multiply
            codes.

    Raises:
        FileError: not a readable ONNX file.
        KernelError: a kernel cannot represent a node's parameters; names the node.
    """
    file = OnnxModel.of(model)
    if not isinstance(profile, Profile):
        profile = profile_of(profile or machine_profile())
    graph = QdqGraph(
        file, profile.signed, profile.int8_as_uint8, int8_kernels=not profile.int8_as_uint8
    )
    work = _Lowering(graph, profile, as_written)
    for node in file.nodes:
        _lower_node(work, node)
    for value in file.outputs:
        if (constant := array_of(value)) is not None:  # the same whatever the input: anchors, say
            work.constants[name_of(value)] = _tensor_of(value, constant.copy())
    steps = join_islands(_needed(work), work.in_runtime, file)
    labels = {o: value_names.tensor_of(o) for s in steps for o in s.outputs}
    inputs = tuple(map(name_of, file.inputs))
    outputs = tuple(_output(work, value) for value in file.outputs)
    lifted = (n for n in file.nodes if n.op_type == "QuantizeLinear" and graph.is_held_as_uint8(n))
    taken = frozenset(name_of(n.outputs[0]) for n in lifted)
    return Program(profile.name, inputs, outputs, steps, work.constants, work.params, labels, taken)


def _lower_node(work: _Lowering, node: ir.Node) -> None:
    if node in work.absorbed or all(map(is_constant, node.outputs)):
        return
    if node.op_type.startswith(_ON_CODES):
        raise KernelError(
            f"{node.name} ({node.op_type}) is an operator of the QOperator format, a name for the "
            "runtime's own kernel, and there is nothing to compare that with; give the model in "
            "QDQ format"
        )
    try:
        if node.op_type == "QuantizeLinear" and is_constant(input_at(node, 0)):
            return  # of a weight: see QdqGraph.codes
        if node.op_type == "QuantizeLinear":
            params = work.graph.params(node)
            kernel = work.profile.bind("quantize", params)
            _add(work, node, "quantize", kernel, node.inputs[:1], params)
        elif node.op_type == "DequantizeLinear":
            _dequantize(work, node)
        elif not any(lowers(work, node) for lowers in _WAYS):
            _float(work, node)
    except KernelError as error:
        message = str(error)
        if str(node.name) in message:
            raise
        raise KernelError(f"{node.name}: {message}") from error


def _float(work: _Lowering, node: ir.Node) -> None:
    """A node in the runtime's own kernel; one from outside in the kernel that came with it."""
    outputs = [o for o in node.outputs if o.name and (o.uses() or o.is_graph_output())]
    own = kernel_of(node.domain, node.op_type)
    if own is not None:
        run = partial(_run_own, own, [i is not None for i in node.inputs], attributes_of(node))
        _add(
            work,
            node,
            "float",
            run,
            [i for i in node.inputs if i is not None],
            outputs=node.outputs,
        )
    elif outputs:
        file = work.graph.model
        kernel, inputs = runtime_graph([node], file, [name_of(o) for o in outputs], {})
        work.in_runtime[name_of(outputs[0])] = node
        made = tuple(map(name_of, outputs))
        work.instructions.append(Instruction(str(node.name), "float", kernel, inputs, made))


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


def _dequantize(work: _Lowering, node: ir.Node) -> None:
    codes = work.graph.codes(node.outputs[0])
    assert codes is not None
    if codes.constant is not None:
        work.dequantized[name_of(node.outputs[0])] = codes
        return
    kernel = work.profile.bind("dequantize", codes.params)
    _add(work, node, "dequantize", kernel, [codes.value])


def _integer(work: _Lowering, node: ir.Node) -> bool:
    found = match_operator(work.graph, node)
    if found is None or (found.quantizer is None and not work.profile.float_results):
        return False
    call = OperatorCall(node, work.graph, work.profile, found.inputs, found.out)
    kernel = found.operator.bind(call)
    weight = found.operator.weight
    inputs = [c.value for c in found.inputs if not (weight and c is not found.inputs[0])]
    for codes in found.inputs:
        if codes.constant is not None:
            work.constants[codes.name] = codes.constant
    if found.quantizer is None:
        _add(work, node, "integer", kernel, inputs)
        return True
    work.absorbed |= set(found.absorbed)
    _add(work, found.quantizer, "integer", kernel, inputs, found.out, name=node.name)
    for twin in found.duplicates:
        _add(work, twin, "move", _as_it_is, [found.quantizer.outputs[0]], found.out)
    return True


def _inside(work: _Lowering, node: ir.Node) -> bool:
    found = bind_node(node, work.graph.model, work.profile, work.as_written)
    if found is None:
        return False
    _add(work, node, "integer", found.kernel, found.inputs, outputs=node.outputs)
    return True


def _as_it_is(codes: torch.Tensor) -> torch.Tensor:
    return codes


def _moved_between(work: _Lowering, node: ir.Node) -> bool:
    found = match_move(work.graph, node)
    if found is None:
        return False
    kernel = work.profile.bind("passthrough", found.codes.params, found.params, found.move)
    work.absorbed.add(found.quantizer)
    _add(work, found.quantizer, "move", kernel, [found.codes.value], found.params, name=node.name)
    return True


def _moved(work: _Lowering, node: ir.Node) -> bool:
    """A move as written, of codes or of floats; a Pad of codes."""
    params = work.params.get(name_of(input_at(node, 0)))
    if node.op_type == "Pad" and params is not None:
        kernel = _pad_codes(work, node, params)
    elif node.op_type in MOVES and (move := move_of(node)) is not None:
        kernel = move
        if params is None:
            work.in_runtime[name_of(node.outputs[0])] = node
    else:
        return False
    _add(work, node, "move", kernel, node.inputs[:1], params)
    return True


_WAYS = (_integer, _inside, _moved_between, _moved)


def _pad_codes(work: _Lowering, node: ir.Node, params: QuantParams) -> Any:
    pads, fill = (array_of(input_at(node, i)) for i in (1, 2))
    if pads is None or attributes_of(node).get("mode", "constant") != "constant":
        raise KernelError(f"{node.name}: only constant padding of codes has a kernel")
    value = 0 if fill is None else int(fill)
    if work.graph.signed and node.op_type == "Pad":
        value -= 128 if fill is None or fill.dtype == "uint8" else 0
    return work.profile.bind("pad", params, params, pads=[int(p) for p in pads], value=value)


def _add(
    work: _Lowering,
    node: ir.Node,
    kind: str,
    kernel: Any,
    inputs: Sequence[ir.Value | None],
    params: QuantParams | None = None,
    name: str | None = None,
    outputs: Sequence[ir.Value] = (),
) -> None:
    for each in inputs:
        if (constant := array_of(each)) is not None:
            work.constants.setdefault(name_of(each), _tensor_of(each, constant))
    read, made = map(name_of, inputs), [name_of(o) for o in outputs or node.outputs[:1]]
    if params is not None:
        work.params[made[0]] = params
    work.instructions.append(
        Instruction(name or str(node.name), kind, kernel, tuple(read), tuple(made))
    )


def _tensor_of(value: ir.Value | None, constant: Array) -> torch.Tensor:
    """A constant of a file; text and the types of ml_dtypes have no tensors."""
    try:
        return torch.from_numpy(constant)
    except TypeError as error:
        kind = "text" if constant.dtype == object else str(constant.dtype)
        raise KernelError(
            f"constant '{name_of(value)}' is of the type {kind}, which the integer engine does not "
            "compute with; cut the file before what reads it"
        ) from error


def _output(work: _Lowering, value: ir.Value) -> str:
    """The codes behind a dequantized output, or the output itself."""
    codes = work.graph.codes(value)
    return codes.name if codes is not None and codes.constant is None else name_of(value)


def _needed(work: _Lowering) -> tuple[Instruction, ...]:
    """The steps that an output depends on: most dequantizations are part of integer steps."""
    needed = {_output(work, value) for value in work.graph.model.outputs}
    kept: list[Instruction] = []
    for step in reversed(work.instructions):
        if needed & set(step.outputs):
            needed |= set(step.inputs)
            kept.append(step)
    for name, codes in work.dequantized.items():
        if name in needed and codes.constant is not None:
            work.constants[name] = codes.dequantize()
    for name in set(work.constants) - needed:
        del work.constants[name]
    return tuple(reversed(kept))
