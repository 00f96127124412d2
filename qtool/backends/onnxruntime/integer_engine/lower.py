"""From a QDQ model to the integer program.

Where the runtime fuses DequantizeLinear, an operator and QuantizeLinear to one integer kernel, the
program has one integer instruction (see fusion_patterns.py); all other nodes run as written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.operators import kernel_of
from qtool.backends.onnx.reading import (
    OnnxModel,
    Source,
    array_of,
    input_at,
    is_constant,
    name_of,
)
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.integer_engine.float_boundary_nodes import bind_node
from qtool.backends.onnxruntime.integer_engine.fusion_patterns import match_move, match_operator
from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction, Kernel, Program
from qtool.backends.onnxruntime.integer_engine.operators import MOVES, OperatorCall, move_of
from qtool.backends.onnxruntime.integer_engine.qdq_parameters import QdqGraph, QuantizedTensor
from qtool.backends.onnxruntime.integer_engine.runtime_node import runtime_graph
from qtool.backends.profiles import Profile
from qtool.backends.profiles import profile as profile_of
from qtool.core import value_names
from qtool.core.errors import KernelError
from qtool.core.quant_params import QuantParams
from qtool.core.remedies import OtherFile
from qtool.core.types import Array

_ON_CODES = ("QLinear", "QGemm")  # prefixes of operators in QOperator format


@dataclass
class _Lowering:
    """The program while it is built.

    Attributes:
        graph: the quantized model.
        profile: whose kernels are bound.
        as_written: do not fuse a dequantized weight into a product of floats.
        instructions: so far, in the order of the model.
        constants: tensor name -> value, or stored codes, dequantized if float operators read them.
        params: tensor name -> quantization parameters.
        absorbed: nodes that are part of an instruction of another node.
        in_runtime: see `join_islands`.
    """

    graph: QdqGraph
    profile: Profile
    as_written: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    constants: dict[str, torch.Tensor | QuantizedTensor] = field(default_factory=dict)
    params: dict[str, QuantParams] = field(default_factory=dict)
    absorbed: set[Node] = field(default_factory=set)
    in_runtime: dict[str, Node] = field(default_factory=dict)


def lower(model: Source, profile: str | Profile | None = None, as_written: bool = False) -> Program:
    """Return the integer program of a QDQ model, written by qtool or by another tool.

    Args:
        model: the model, read or not, or the path of its file.
        profile: the numerics profile (`qtool.backends.profiles.PROFILES`); by default that of ONNX
            Runtime on this processor. x86 profiles hold int8 codes as uint8 where the runtime does;
            "tflite" holds uint8 codes as int8.
        as_written: products of floats and a dequantized weight stay so, where the runtime would
            multiply codes.

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
    state = _Lowering(graph, profile, as_written)
    for node in file.nodes:
        _lower_node(state, node)
    for value in file.outputs:
        if (constant := array_of(value)) is not None:  # independent of the inputs, as anchors are
            state.constants[name_of(value)] = _tensor_of(value, constant.copy())
    needed, constants = _needed(state)
    instructions = join_islands(needed, state.in_runtime, file)
    labels = {o: value_names.tensor_of(o) for s in instructions for o in s.outputs}
    inputs = tuple(map(name_of, file.inputs))
    outputs = tuple(_output(state, value) for value in file.outputs)
    int8 = (n for n in file.nodes if n.op_type == "QuantizeLinear" and graph.is_held_as_uint8(n))
    held_as_uint8 = frozenset(name_of(n.outputs[0]) for n in int8)
    return Program(
        profile.name,
        inputs,
        outputs,
        instructions,
        constants,
        state.params,
        labels,
        held_as_uint8,
    )


def _lower_node(state: _Lowering, node: Node) -> None:
    if node in state.absorbed or all(map(is_constant, node.outputs)):
        return
    if node.op_type.startswith(_ON_CODES):
        raise KernelError(
            f"{node.name} ({node.op_type}) is an operator of the QOperator format, which "
            "names the runtime's own kernel and has no arithmetic to compare with",
            OtherFile("use the model in QDQ format"),
        )
    try:
        if node.op_type == "QuantizeLinear" and is_constant(input_at(node, 0)):
            return  # of a weight: see QdqGraph.codes
        if node.op_type == "QuantizeLinear":
            params = state.graph.params(node)
            kernel = state.profile.bind("quantize", params)
            _add(state, node, "quantize", kernel, node.inputs[:1], params)
        elif node.op_type == "DequantizeLinear":
            _dequantize(state, node)
        elif not any(lowers(state, node) for lowers in _LOWERINGS):
            _float(state, node)
    except KernelError as error:
        message = str(error)
        if str(node.name) in message:
            raise
        raise KernelError(f"{node.name}: {message}") from error


def _float(state: _Lowering, node: Node) -> None:
    """Add a node that runs in the runtime, or in the kernel that came with a custom operator."""
    outputs = [o for o in node.outputs if o.name and (o.uses or o.is_output)]
    custom = kernel_of(node.domain, node.op_type)
    if custom is not None:
        run = partial(_run_custom, custom, [i is not None for i in node.inputs], node.attributes)
        inputs = [i for i in node.inputs if i is not None]
        _add(state, node, "float", run, inputs, outputs=node.outputs)
    elif outputs:
        file = state.graph.model
        kernel, sources = runtime_graph([node], file, [name_of(o) for o in outputs], {})
        state.in_runtime[name_of(outputs[0])] = node
        names = tuple(map(name_of, outputs))
        state.instructions.append(Instruction(str(node.name), "float", kernel, sources, names))


def _run_custom(
    kernel: Kernel,
    present: Sequence[bool],
    attributes: Mapping[str, Any],
    *values: torch.Tensor,
) -> Any:
    """Call the kernel of a custom operator.

    Omitted inputs are None, and bytes of the file are passed as text.
    """
    remaining = iter(values)
    texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    return kernel(*(next(remaining) if here else None for here in present), **texts)


def _dequantize(state: _Lowering, node: Node) -> None:
    codes = state.graph.codes(node.outputs[0])
    assert codes is not None
    if codes.constant is not None:
        state.constants[name_of(node.outputs[0])] = codes
        return
    kernel = state.profile.bind("dequantize", codes.params)
    _add(state, node, "dequantize", kernel, [codes.value])


def _integer(state: _Lowering, node: Node) -> bool:
    match = match_operator(state.graph, node)
    if match is None or (match.quantizer is None and not state.profile.float_results):
        return False
    call = OperatorCall(node, state.graph, state.profile, match.inputs, match.out)
    kernel = match.operator.bind(call)
    weight = match.operator.weight
    inputs = [c.value for c in match.inputs if not (weight and c is not match.inputs[0])]
    for codes in match.inputs:
        if codes.constant is not None:
            state.constants[codes.name] = codes.constant
    if match.quantizer is None:
        _add(state, node, "integer", kernel, inputs)
        return True
    state.absorbed |= set(match.absorbed)
    _add(state, match.quantizer, "integer", kernel, inputs, match.out, name=node.name)
    for duplicate in match.duplicates:
        _add(state, duplicate, "move", _identity, [match.quantizer.outputs[0]], match.out)
    return True


def _bound_node(state: _Lowering, node: Node) -> bool:
    bound = bind_node(node, state.graph.model, state.profile, state.as_written)
    if bound is None:
        return False
    _add(state, node, "integer", bound.kernel, bound.inputs, outputs=node.outputs)
    return True


def _identity(codes: torch.Tensor) -> torch.Tensor:
    return codes


def _fused_move(state: _Lowering, node: Node) -> bool:
    match = match_move(state.graph, node)
    if match is None:
        return False
    kernel = state.profile.bind("passthrough", match.codes.params, match.params, match.move)
    state.absorbed.add(match.quantizer)
    _add(state, match.quantizer, "move", kernel, [match.codes.value], match.params, name=node.name)
    return True


def _move(state: _Lowering, node: Node) -> bool:
    """Add a move as written, of codes or of floats; a Pad of codes."""
    params = state.params.get(name_of(input_at(node, 0)))
    if node.op_type == "Pad" and params is not None:
        kernel = _pad_codes(state, node, params)
    elif node.op_type in MOVES and (move := move_of(node)) is not None:
        kernel = move
        if params is None:
            state.in_runtime[name_of(node.outputs[0])] = node
    else:
        return False
    _add(state, node, "move", kernel, node.inputs[:1], params)
    return True


_LOWERINGS = (_integer, _bound_node, _fused_move, _move)


def _pad_codes(state: _Lowering, node: Node, params: QuantParams) -> Kernel:
    pads, fill = (array_of(input_at(node, i)) for i in (1, 2))
    if pads is None or node.attributes.get("mode", "constant") != "constant":
        raise KernelError(f"{node.name}: only constant padding of codes has a kernel")
    value = 0 if fill is None else int(fill)
    if state.graph.signed and node.op_type == "Pad":
        value -= 128 if fill is None or fill.dtype == "uint8" else 0
    return state.profile.bind("pad", params, params, pads=[int(p) for p in pads], value=value)


def _add(
    state: _Lowering,
    node: Node,
    kind: str,
    kernel: Kernel,
    inputs: Sequence[Value | None],
    params: QuantParams | None = None,
    name: str | None = None,
    outputs: Sequence[Value] = (),
) -> None:
    for each in inputs:
        if (constant := array_of(each)) is not None:
            state.constants.setdefault(name_of(each), _tensor_of(each, constant))
    names = tuple(name_of(o) for o in outputs or node.outputs[:1])
    if params is not None:
        state.params[names[0]] = params
    state.instructions.append(
        Instruction(name or str(node.name), kind, kernel, tuple(map(name_of, inputs)), names)
    )


def _tensor_of(value: Value | None, constant: Array) -> torch.Tensor:
    """Return a constant as a tensor; torch has no text and no types of ml_dtypes."""
    try:
        return torch.from_numpy(constant)
    except TypeError as error:
        kind = "text" if constant.dtype == object else str(constant.dtype)
        raise KernelError(
            f"constant '{name_of(value)}' is of the type {kind}, which the integer engine "
            "does not compute with",
            OtherFile("cut the file before what reads it"),
        ) from error


def _output(state: _Lowering, value: Value) -> str:
    """Return the codes behind a dequantized output, or the output itself."""
    codes = state.graph.codes(value)
    return codes.name if codes is not None and codes.constant is None else name_of(value)


def _needed(state: _Lowering) -> tuple[tuple[Instruction, ...], dict[str, torch.Tensor]]:
    """Return the instructions and constants that an output depends on: most dequantizations are
    fused."""
    needed = {_output(state, value) for value in state.graph.model.outputs}
    reversed_: list[Instruction] = []
    for instruction in reversed(state.instructions):
        if needed & set(instruction.outputs):
            needed |= set(instruction.inputs)
            reversed_.append(instruction)
    constants = {
        name: value.dequantize() if isinstance(value, QuantizedTensor) else value
        for name, value in state.constants.items()
        if name in needed
    }
    return tuple(reversed(reversed_)), constants


# Float islands: float instructions that the runtime runs together as one graph.
#
# The level of an instruction counts how often a path to it changes between nodes of the runtime and
# kernels of the engine. No kernel of the engine lies between two nodes of one level, on any path.


def join_islands(
    instructions: tuple[Instruction, ...], nodes: Mapping[str, Node], file: OnnxModel
) -> tuple[Instruction, ...]:
    """Join the float instructions of each level to one.

    Args:
        instructions: instructions of a program.
        nodes: first output of an instruction -> its node, for those that the runtime could run:
            float operators, and moves of float tensors. A level of moves only stays as it is.
        file: the model.
    """
    levels = _levels(instructions, nodes)
    ordered = sorted(instructions, key=lambda s: levels[s.output])  # stable: the order stays valid
    members: dict[int, list[Instruction]] = {}
    for instruction in ordered:
        if instruction.output in nodes:
            members.setdefault(levels[instruction.output], []).append(instruction)
    joined = list[Instruction]()
    for instruction in ordered:
        island = members.get(levels[instruction.output], []) if instruction.output in nodes else []
        if len(island) < 2 or all(s.kind != "float" for s in island):
            joined.append(instruction)
        elif instruction is island[0]:
            joined.append(_join(island, instructions, nodes, file))
    return tuple(joined)


def _levels(instructions: tuple[Instruction, ...], nodes: Collection[str]) -> dict[str, int]:
    """Return output -> level of its instruction; inputs and constants have none."""
    levels: dict[str, tuple[int, bool]] = {}
    for instruction in instructions:
        here = instruction.output in nodes
        before = [levels[n] for n in instruction.inputs if n in levels]
        level = max((at + (kind is not here) for at, kind in before), default=int(here))
        levels |= dict.fromkeys(instruction.outputs, (level, here))
    return {name: level for name, (level, _) in levels.items()}


def _join(
    island: list[Instruction],
    instructions: tuple[Instruction, ...],
    nodes: Mapping[str, Node],
    file: OnnxModel,
) -> Instruction:
    inside = {id(s) for s in island}
    needed = {n for s in instructions if id(s) not in inside for n in s.inputs} | set(
        map(name_of, file.outputs)
    )
    outputs = tuple(o for s in island for o in s.outputs if o in needed)
    parts = [nodes[s.output] for s in island]
    kernel, inputs = runtime_graph(parts, file, outputs, file.value_info)
    count = sum(s.node_count for s in island if s.kind == "float")
    first, last = island[0].name, island[-1].name
    return replace(
        island[0],
        name=f"{first} to {last}",
        kind="float",
        kernel=kernel,
        inputs=inputs,
        outputs=outputs,
        node_count=count,
    )
