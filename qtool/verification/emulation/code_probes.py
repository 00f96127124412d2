"""The integer codes in a file: which tensors they are, and models that return them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

_INTEGERS: Mapping[int, str] = {
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16",
}
_FUSED = ("Relu", "Clip")  # that stand between an operator and the rounding of its result
_ZERO_POINT = {"QLinearConv": 7, "QLinearMatMul": 7, "QGemm": 8, "QuantizeLinear": 2}


@dataclass(frozen=True)
class CodeTensor:
    """A tensor of codes in a file.

    Attributes:
        tensor: its name.
        node: the operator whose result it is: behind a QuantizeLinear the one that it rounds.
        op: the type of that operator.
        dtype: of the codes in the file, as numpy calls it; float32 for the result of an integer
            kernel that gives floats.
    """

    tensor: str
    node: str
    op: str
    dtype: str


@dataclass(frozen=True)
class Shapes:
    """What is known of an array of every batch: its type, and its shape in each of them."""

    dtype: np.dtype[Any]
    sizes: tuple[tuple[int, ...], ...]


def code_tensors(model: onnx.ModelProto) -> tuple[CodeTensor, ...]:
    """Return all tensors of 8 or 16-bit codes that are computed, in the order of the graph: results
    of QuantizeLinear, and of the QLinear operators."""
    made = {o: n for n in model.graph.node for o in n.output if o}
    types = _constant_types(model)
    constant = set(types)
    found = []
    for node in model.graph.node:
        if all(i in constant for i in node.input if i) and node.input:
            constant.update(node.output)
        elif dtype := _dtype_of_codes(node, types):
            source = _rounded(node, made) if node.op_type == "QuantizeLinear" else node
            found.append(CodeTensor(node.output[0], label(source), source.op_type, dtype))
    return tuple(found)


def _constant_types(model: onnx.ModelProto) -> dict[str, int]:
    """Stored tensors and results of Constant -> element type (0 where it is not told)."""
    types = {t.name: t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            stored = [a.t.data_type for a in node.attribute if a.name == "value"]
            types |= dict.fromkeys(node.output, stored[0] if stored else 0)
    return types


def _dtype_of_codes(node: onnx.NodeProto, types: Mapping[str, int]) -> str:
    """Of the codes that a node gives; empty where it gives none."""
    if not (node.op_type.startswith("QLinear") or node.op_type in ("QuantizeLinear", "QGemm")):
        return ""
    return _INTEGERS.get(_element_type(node, types)) or ""


def _element_type(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """Of a node's codes: that of its zero point, or what it says. QGemm without one gives floats;
    of QLinear operators outside of ONNX the zero point stands last, or ahead of a variable part."""
    said = [a.i for a in node.attribute if a.name == "output_dtype" and a.i]
    if said:
        return int(said[0])
    at = _ZERO_POINT.get(node.op_type)
    if at is None:  # any zero point will do: all of a node's codes are of one type
        kinds = [types[i] for i in node.input if types.get(i) in _INTEGERS]
        return kinds[-1] if kinds else int(TensorProto.UINT8)
    if len(node.input) <= at or not node.input[at]:
        return int(TensorProto.UINT8) if node.op_type == "QuantizeLinear" else 0
    return types.get(node.input[at], 0)


def _rounded(node: onnx.NodeProto, made: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto:
    """The operator whose result a QuantizeLinear rounds, ahead of what the runtime fuses with it;
    itself where it rounds an input of the model."""
    source = made.get(node.input[0])
    while source is not None and source.op_type in _FUSED and source.input[0] in made:
        source = made[source.input[0]]
    return node if source is None else source


def label(node: onnx.NodeProto) -> str:
    """Return the name of a node; without one, what it makes."""
    return node.name or f"the {node.op_type} that makes '{next(iter(node.output), '')}'"


def with_outputs(model: onnx.ModelProto, codes: Iterable[CodeTensor]) -> onnx.ModelProto:
    """Return the model with codes as further outputs."""
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    present = {o.name for o in asked.graph.output}
    names = [c.tensor for c in codes if c.tensor not in present]
    asked.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return asked


def with_code_inputs(
    asked: onnx.ModelProto, codes: Mapping[str, Shapes], floats: Iterable[CodeTensor] = ()
) -> tuple[onnx.ModelProto, list[str]]:
    """Return a model in which every node reads codes that are given, not those that were computed
    ahead of it; and the names of these codes, in the order of the further inputs.

    So each kernel reads equal codes on every processor, and what differs is its own doing.

    Args:
        asked: a model that returns its codes.
        codes: what is known of each of them.
        floats: results of kernels that the model is to return, too.
    """
    forced = with_outputs(asked, floats)
    read = {i for n in forced.graph.node for i in n.input}
    given = {name: f"{name}/given" for name in codes if name in read}
    for node in forced.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = given.get(name, name)
    for name, title in given.items():
        kind = helper.np_dtype_to_tensor_dtype(codes[name].dtype)
        sizes = _sizes(title, codes[name].sizes)
        forced.graph.input.append(helper.make_tensor_value_info(title, kind, sizes))
    return forced, list(given)


def _sizes(name: str, shapes: Sequence[tuple[int, ...]]) -> list[int | str]:
    """Sizes that all batches have in common; names for the others."""
    columns = enumerate(zip(*shapes, strict=True))
    return [sizes[0] if len(set(sizes)) == 1 else f"{name}_{i}" for i, sizes in columns]
