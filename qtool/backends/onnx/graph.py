"""ONNX graphs to read: who makes and who reads a tensor, its type, its value if it is constant.

Built once from a message and not changed. Conversion edits graphs with onnx_ir; who reads them
needs neither it nor what it requires.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from qtool.backends.onnx.nested_graphs import inner_graphs
from qtool.core.types import Array

_PACKED = tuple(
    getattr(TensorProto, name)
    for name in ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1")
    if hasattr(TensorProto, name)
)
"""Types of which a byte holds several values."""


def numpy_type(code: int) -> np.dtype[Any]:
    """Return the element type of a code of ONNX.

    Raises:
        ValueError: there is no such code, as in a damaged file.
    """
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except KeyError as error:
        raise ValueError(f"there is no element type {code}") from error


@dataclass(frozen=True)
class StoredTensors:
    """The tensors of a model. Another file is mapped once, as long as a view of it is used.

    Attributes:
        folder: folder of the model; None if all tensors are in its message.
    """

    folder: Path | None
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict)

    def array(self, tensor: onnx.TensorProto) -> Array:
        """Return a tensor; text as an array of bytes objects.

        Raises:
            ValueError: its data does not fit its type and shape, or lies outside of the folder.
            OSError: a file cannot be read.
        """
        shape = tuple(tensor.dims)
        if tensor.data_type == TensorProto.STRING:
            return np.array(list(tensor.string_data), object).reshape(shape)
        if tensor.data_location != TensorProto.EXTERNAL:
            return np.array(numpy_helper.to_array(tensor))  # torch requires writable memory
        dtype = numpy_type(tensor.data_type)
        if not prod(shape):
            return np.zeros(shape, dtype)
        place = {e.key: e.value for e in tensor.external_data}
        data, start = self._map(place["location"]), int(place.get("offset", 0))
        if tensor.data_type not in _PACKED:
            return np.frombuffer(data, dtype, prod(shape), start).reshape(shape)
        raw = data[start : start + int(place.get("length", len(data) - start))]
        packed = TensorProto(data_type=tensor.data_type, dims=shape, raw_data=raw)
        return np.array(numpy_helper.to_array(packed))

    def _map(self, location: str) -> mmap.mmap:
        """Return a file, mapped copy-on-write, since torch requires writable memory."""
        folder = self.folder or Path()
        path = folder / location
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"its data '{location}' is outside of its folder")
        if path not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[path]


ReadTensor = Callable[[onnx.TensorProto], Array]


class Use(NamedTuple):
    """A node that reads a tensor, and at which of its inputs."""

    node: Node
    place: int


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of a graph.

    Attributes:
        name: its name.
        producer: the node that makes it; None for inputs, stored values and unknown names.
        uses: the inputs that read it, also those of nodes in subgraphs.
        array: its value if it is constant, text as objects.
        dtype: its element type, None if the graph does not state it.
        shape: its sizes, a name or None for an open one; None if the graph does not state them.
        is_output: whether it is an output of its graph.
        is_inner: whether it belongs to a subgraph.
    """

    name: str
    producer: Node | None = None
    array: Array | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int | str | None, ...] | None = None
    is_output: bool = False
    is_inner: bool = False
    uses: list[Use] = field(default_factory=list)

    def state(self, kind: onnx.TypeProto) -> None:
        """Take over a stated type."""
        tensor = kind.tensor_type
        self.dtype = numpy_type(tensor.elem_type) if tensor.elem_type else None
        self.shape = None
        if tensor.HasField("shape"):
            self.shape = tuple(
                d.dim_value if d.HasField("dim_value") else d.dim_param or None
                for d in tensor.shape.dim
            )


@dataclass(eq=False, slots=True)
class Node:
    """An operator of a graph.

    Attributes:
        message: the operator as it is stored.
        name: its name; that of its first output if it has none.
        attributes: numbers, text and lists of them; tensors and graphs as messages.
        inputs: what it reads, None for an omitted input.
        outputs: what it makes.
        around: the node of the main graph that it is a part of; None in the main graph.
        inner: the nodes of its subgraphs, at any depth.
    """

    message: onnx.NodeProto
    name: str
    attributes: Mapping[str, Any]
    outputs: tuple[Value, ...] = ()
    inputs: tuple[Value | None, ...] = ()
    around: Node | None = None
    inner: list[Node] = field(default_factory=list)

    @property
    def op_type(self) -> str:
        return self.message.op_type

    @property
    def domain(self) -> str:
        return self.message.domain


@dataclass(frozen=True, eq=False)
class Graph:
    """The main graph of a model; iterating over it gives its nodes, in its order."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    initializers: Mapping[str, Value]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


def read_graph(
    graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto], read: ReadTensor | None = None
) -> Graph:
    """Return a graph.

    Args:
        graph: its message.
        nodes: the messages of its nodes, which the result keeps; those of `graph` or copies.
        read: returns the value of a tensor; without it no value is constant.

    Raises:
        ValueError: two nodes make a tensor, or a Constant has no value that can be read.
    """
    scope: dict[str, Value] = {}
    made = _read(graph, nodes, [scope], None)
    if read is not None:
        for tensor in graph.initializer:
            if tensor.name:
                scope[tensor.name].array = read(tensor)
        for node in made:
            if node.op_type == "Constant" and not node.domain and node.outputs:
                node.outputs[0].array = _constant(node, read)
    inputs = tuple(scope[i.name] for i in graph.input)
    outputs = tuple(scope[o.name] for o in graph.output)
    return Graph(
        made, inputs, outputs, {t.name: scope[t.name] for t in graph.initializer if t.name}
    )


def _read(
    graph: onnx.GraphProto,
    nodes: Iterable[onnx.NodeProto],
    scopes: list[dict[str, Value]],
    around: Node | None,
) -> tuple[Node, ...]:
    """Return the nodes of a graph, and add its tensors to the last of `scopes`."""
    own, is_inner = scopes[-1], around is not None
    for info in graph.input:
        own[info.name] = Value(info.name, is_inner=is_inner)
        own[info.name].state(info.type)
    for tensor in graph.initializer:
        if tensor.name not in own:
            dtype = numpy_type(tensor.data_type)
            own[tensor.name] = Value(
                tensor.name, dtype=dtype, shape=tuple(tensor.dims), is_inner=is_inner
            )
    made = tuple(_declared(message, own, around) for message in nodes)
    for info in graph.value_info:
        if info.name in own:
            own[info.name].state(info.type)
    for info in graph.output:
        value = own.setdefault(info.name, Value(info.name))
        value.state(info.type)
        value.is_output = True
    for node in made:
        _connect(node, scopes)
    return made


def _declared(message: onnx.NodeProto, own: dict[str, Value], around: Node | None) -> Node:
    """Return a node with its outputs."""
    name = message.name or next(iter(message.output), "")
    node = Node(message, name, _attributes(message), around=around)
    node.outputs = tuple(Value(o, node, is_inner=around is not None) for o in message.output)
    for value in node.outputs:
        if value.name and own.setdefault(value.name, value) is not value:
            raise ValueError(f"two nodes make '{value.name}', or one makes an input of the graph")
    return node


def _connect(node: Node, scopes: list[dict[str, Value]]) -> None:
    """Connect the inputs of a node and of the nodes in its subgraphs."""
    node.inputs = tuple(_find(name, scopes) for name in node.message.input)
    for index, value in enumerate(node.inputs):
        if value is not None:
            value.uses.append(Use(node, index))
    for graph in inner_graphs(node.message):
        for inner in _read(graph, graph.node, [*scopes, {}], node.around or node):
            node.inner += [inner, *inner.inner]


def _find(name: str, scopes: list[dict[str, Value]]) -> Value | None:
    """Return the tensor of a name in the innermost graph that has it."""
    if not name:
        return None
    for scope in reversed(scopes):
        if name in scope:
            return scope[name]
    return scopes[-1].setdefault(name, Value(name))  # no node makes it


def _attributes(message: onnx.NodeProto) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute in message.attribute:
        if attribute.ref_attr_name or attribute.type == AttributeProto.UNDEFINED:
            values[attribute.name] = None
            continue
        value = helper.get_attribute_value(attribute)  # sequences as lists, text as bytes
        if attribute.type == AttributeProto.STRING:
            value = _text(value)
        elif attribute.type == AttributeProto.STRINGS:
            value = [_text(v) for v in value]
        values[attribute.name] = value
    return values


def _text(value: bytes) -> str | bytes:
    """Return text; custom operators may store other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _constant(node: Node, read: ReadTensor) -> Array | None:
    """Return the value of a Constant."""
    if len(node.outputs) != 1 or len(node.message.attribute) != 1:
        raise ValueError(f"the Constant '{node.name}' has no single output and attribute")
    (attribute,) = node.message.attribute
    kind = attribute.name
    if attribute.ref_attr_name:
        return None
    if kind == "value":
        return read(attribute.t)
    if kind in ("value_float", "value_floats"):
        return np.array(node.attributes[kind], np.float32)
    if kind in ("value_int", "value_ints"):
        return np.array(node.attributes[kind], np.int64)
    if kind in ("value_string", "value_strings"):
        return np.array(helper.get_attribute_value(attribute), object)
    raise ValueError(f"the Constant '{node.name}' has a value of the kind '{kind}'")
