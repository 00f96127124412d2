"""The integer codes in a file: which tensors they are, models that return them, and the kernels
that compute them in the graph that the runtime executes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto

_INTEGERS: Mapping[int, str] = {
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16",
}
_FUSED = ("Relu", "Clip")  # between an operator and the rounding of its result
_ZERO_POINT = {"QLinearConv": 7, "QLinearMatMul": 7, "QGemm": 8, "QuantizeLinear": 2}
_MOVES = frozenset((
    *("Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity", "Pad"),
    *("Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
))  # fmt: skip
_FLOAT_RESULTS = ("QGemm", "MatMulIntegerToFloat")
_HIDDEN = re.compile(r"Integer|DynamicQuantize(?!Linear)|NBits|^Q(Attention|Embed|Ordered|MoE)")


@dataclass(frozen=True)
class CodeTensor:
    """A tensor of codes in a file.

    Attributes:
        tensor: its name.
        node: the operator that computes it; for a QuantizeLinear the operator before it.
        op: the type of that operator.
        dtype: numpy dtype of the codes in the file; float32 for the result of an integer kernel
            with float results.
    """

    tensor: str
    node: str
    op: str
    dtype: str


@dataclass(frozen=True)
class Probes:
    """What is compared of a file.

    Attributes:
        codes: tensors of codes, in the order of the graph.
        floats: float results of integer kernels.
        float_nodes: tensor of codes -> the float nodes ahead of it here.
        hidden: kernels with integers inside whose results cannot be compared.
    """

    codes: tuple[CodeTensor, ...]
    floats: tuple[CodeTensor, ...]
    float_nodes: Mapping[str, tuple[str, ...]]
    hidden: tuple[str, ...]

    @classmethod
    def of(
        cls, model: onnx.ModelProto, codes: tuple[CodeTensor, ...], executed: onnx.ModelProto
    ) -> Probes:
        """Return the probes of a file.

        Args:
            model: the file.
            codes: its `code_tensors`.
            executed: the optimised graph of the model that returns the codes.
        """
        floats = float_kernels(executed, model, codes)
        return cls(codes, floats, float_nodes(executed, codes), hidden_kernels(executed, floats))


def code_tensors(model: onnx.ModelProto) -> tuple[CodeTensor, ...]:
    """Return all computed tensors of 8 or 16-bit codes in the order of the graph.

    These are results of QuantizeLinear and of the QLinear operators.
    """
    makers = {o: n for n in model.graph.node for o in n.output if o}
    types = _constant_types(model)
    constant = set(types)
    codes = []
    for node in model.graph.node:
        if all(i in constant for i in node.input if i) and node.input:
            constant.update(node.output)
        elif dtype := _dtype_of_codes(node, types):
            source = _rounded(node, makers) if node.op_type == "QuantizeLinear" else node
            codes.append(CodeTensor(node.output[0], label(source), source.op_type, dtype))
    return tuple(codes)


def _constant_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return initializers and results of Constant -> element type (0 if unknown)."""
    types = {t.name: t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            stored = [a.t.data_type for a in node.attribute if a.name == "value"]
            types |= dict.fromkeys(node.output, stored[0] if stored else 0)
    return types


def _dtype_of_codes(node: onnx.NodeProto, types: Mapping[str, int]) -> str:
    """Return the dtype of the codes that a node computes; empty if it computes none."""
    if not (node.op_type.startswith("QLinear") or node.op_type in ("QuantizeLinear", "QGemm")):
        return ""
    return _INTEGERS.get(_element_type(node, types)) or ""


def _element_type(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """Return the element type of a node's codes: its output_dtype or that of its zero point.

    QGemm without a zero point returns floats. QLinear operators outside of ONNX have the zero point
    last, or before a variable number of inputs.
    """
    stated = [a.i for a in node.attribute if a.name == "output_dtype" and a.i]
    if stated:
        return int(stated[0])
    at = _ZERO_POINT.get(node.op_type)
    if at is None:  # any zero point will do: all of a node's codes are of one type
        kinds = [types[i] for i in node.input if types.get(i) in _INTEGERS]
        return kinds[-1] if kinds else int(TensorProto.UINT8)
    if len(node.input) <= at or not node.input[at]:
        return int(TensorProto.UINT8) if node.op_type == "QuantizeLinear" else 0
    return types.get(node.input[at], 0)


def _rounded(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto:
    """Return the operator whose result a QuantizeLinear rounds, before fused activations.

    Returns the QuantizeLinear itself if it rounds an input of the model.
    """
    source = makers.get(node.input[0])
    while source is not None and source.op_type in _FUSED and source.input[0] in makers:
        source = makers[source.input[0]]
    return node if source is None else source


def label(node: onnx.NodeProto) -> str:
    """Return the name of a node, or a description by its output."""
    return node.name or f"the {node.op_type} that makes '{next(iter(node.output), '')}'"


def with_outputs(model: onnx.ModelProto, codes: Iterable[CodeTensor]) -> onnx.ModelProto:
    """Return a copy of the model with codes as further outputs."""
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    present = {o.name for o in extended.graph.output}
    names = [c.tensor for c in codes if c.tensor not in present]
    extended.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return extended


def with_code_inputs(
    model: onnx.ModelProto, inputs: Mapping[str, onnx.ValueInfoProto], floats: Iterable[CodeTensor]
) -> onnx.ModelProto:
    """Return a model whose nodes read codes from further inputs instead of from earlier nodes.

    So each kernel reads equal codes on every processor, and a difference is its own.

    Args:
        model: a model that returns its codes.
        inputs: tensor of codes -> the input that takes its place.
        floats: results of kernels that the model also returns.
    """
    forced = with_outputs(model, floats)
    for node in forced.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = inputs[name].name if name in inputs else name
    forced.graph.input.extend(inputs.values())
    return forced


# --- the kernels that compute them ---------------------------------------------------------------


def float_nodes(
    executed: onnx.ModelProto, codes: Iterable[CodeTensor]
) -> dict[str, tuple[str, ...]]:
    """Return each computed tensor of codes -> the float nodes between the codes that it is computed
    from and it, as "name (type)"; none for the result of an integer kernel.

    Args:
        executed: the optimised graph of a model that returns the codes, so that they keep their
            names.
        codes: the tensors.
    """
    names = {c.tensor for c in codes}
    makers = {o: n for n in executed.graph.node for o in n.output if o}
    ends = names | {t.name for t in executed.graph.initializer}
    nodes = {name: _skip_moves(makers[name], makers, ends) for name in names & set(makers)}
    return {
        name: _float_nodes(node, makers, ends) if node.op_type == "QuantizeLinear" else ()
        for name, node in nodes.items()
    }


def _skip_moves(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], ends: set[str]
) -> onnx.NodeProto:
    """Return the node that computes the codes a node moves: the runtime adds transposes."""
    while node.op_type in _MOVES and node.input[0] in makers and node.input[0] not in ends:
        node = makers[node.input[0]]
    return node


def float_kernels(
    executed: onnx.ModelProto, model: onnx.ModelProto, codes: Iterable[CodeTensor]
) -> tuple[CodeTensor, ...]:
    """Return the float results of integer kernels, such as linear layers before a float node."""
    names = {c.tensor for c in codes}
    makers = {o: n for n in model.graph.node for o in n.output if o}
    executed_by = {o: n for n in executed.graph.node for o in n.output if o}
    ends = names | {t.name for t in executed.graph.initializer}
    results = []
    for node in executed.graph.node:
        name = node.output[0] if node.output else ""
        if node.op_type not in _FLOAT_RESULTS or name in names or name not in makers:
            continue
        if _source(node.input[0], executed_by, ends) in names:
            results.append(CodeTensor(name, label(makers[name]), makers[name].op_type, "float32"))
    return tuple(results)


def _source(name: str, makers: Mapping[str, onnx.NodeProto], ends: set[str]) -> str:
    """Return the tensor that nodes which only move data start from."""
    while name not in ends and name in makers and makers[name].op_type in _MOVES:
        name = str(makers[name].input[0])
    return name


def hidden_kernels(executed: onnx.ModelProto, compared: Iterable[CodeTensor]) -> tuple[str, ...]:
    """Return the kernels with integers inside and float results that are not compared."""
    names = {c.tensor for c in compared}
    kernels = (n for n in executed.graph.node if _HIDDEN.search(n.op_type))
    return tuple(f"{label(n)} ({n.op_type})" for n in kernels if n.output[0] not in names)


def _float_nodes(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], ends: set[str]
) -> tuple[str, ...]:
    """Return the float nodes between codes and a rounding, the nearest first."""
    nodes: dict[str, None] = {}
    waiting, visited = [node.input[0]], set()
    while waiting:
        name = waiting.pop(0)
        if name in ends or name in visited or name not in makers:
            continue
        visited.add(name)
        source = makers[name]
        if source.op_type not in _MOVES:
            nodes[f"{label(source)} ({source.op_type})"] = None
        waiting.extend(i for i in source.input if i)
    return tuple(nodes)
