"""ONNX models, read: producers and readers of each tensor, constants and attributes as values.

All code that inspects an ONNX graph uses this module on top of onnx_ir. Weights in a second file
are memory-mapped views, read when they are used.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qtool.backends.onnx.storage import load_outline, outline
from qtool.backends.onnx.topological_order import in_order, sort_nodes
from qtool.core.errors import FileError
from qtool.core.process_lock import silence_logging
from qtool.core.types import Array


class OnnxModel:
    """A model that was read.

    Attributes:
        model: model in onnx_ir; constants are read-only arrays. Nodes without names are named after
            their first output.
        outline: the model as a message without its weights, for checks and shape inference.
        is_single_file: whether all weights are in the model file.
        has_unnamed_nodes: whether the source has nodes without names.
    """

    def __init__(self, model: ir.Model, outline: onnx.ModelProto, is_single_file: bool) -> None:
        self.model = model
        self.outline = outline
        self.is_single_file = is_single_file
        self.has_unnamed_nodes = any(not n.name for n in model.graph)
        for node in model.graph:
            node.name = node.name or (str(node.outputs[0].name) if node.outputs else None)
        self._around: dict[ir.Graph | ir.Function, ir.Node] = {
            graph: node for node in model.graph for graph in _graphs_in(node)
        }

    @classmethod
    def of(cls, source: Source) -> OnnxModel:
        """Read a file or a message; return an `OnnxModel` as it is.

        Raises:
            FileError: not a readable ONNX file, or its external data is missing.
        """
        if isinstance(source, OnnxModel):
            return source
        if isinstance(source, onnx.ModelProto):
            return _read(_sorted(source), None, source.graph.name)
        return _read(load_outline(source), Path(source).parent, str(source))

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes of the main graph, in its order."""
        return list(self.model.graph)

    @property
    def inputs(self) -> list[ir.Value]:
        """The inputs without a stored value."""
        return [v for v in self.model.graph.inputs if v.const_value is None]

    @property
    def outputs(self) -> list[ir.Value]:
        return list(self.model.graph.outputs)

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """Return the nodes that read a tensor, directly or in a subgraph, each once."""
        return list(dict.fromkeys(self._outer(use.node) for use in value.uses()))

    def _outer(self, node: ir.Node) -> ir.Node:
        return node if node.graph is None else self._around.get(node.graph, node)

    def only_reader(self, value: ir.Value) -> ir.Node | None:
        """Return the only node that reads a tensor, None for several readers or an output."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and not value.is_graph_output() else None

    @cached_property
    def value_info(self) -> Mapping[str, onnx.ValueInfoProto]:
        """Types and shapes that the model states, and those of the shape inference of onnx."""
        graph = self.outline.graph
        try:
            inferred = onnx.shape_inference.infer_shapes(self.outline).graph.value_info
        except (ValueError, onnx.shape_inference.InferenceError):  # contradictory shapes
            inferred = []
        return {i.name: i for i in (*inferred, *graph.value_info, *graph.input, *graph.output)}


Source = OnnxModel | onnx.ModelProto | str | Path


def name_of(value: ir.Value | None) -> str:
    """Return the name of a value, "" for an omitted input."""
    return "" if value is None else str(value.name)


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a tensor is a constant."""
    return value is not None and value.const_value is not None


def array_of(value: ir.Value | None) -> Array | None:
    """Return a constant as an array (text as objects), None if it is not constant."""
    if value is None or value.const_value is None:
        return None
    array: Array = value.const_value.numpy()
    return array.astype(object) if value.const_value.dtype is ir.DataType.STRING else array


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, None if it has no such input."""
    return node.inputs[index] if len(node.inputs) > index else None


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Return numbers, text and lists of them; tensors and graphs as onnx_ir has them."""
    return {
        name: list(a.value) if isinstance(a.value, tuple) else a.value
        for name, a in node.attributes.items()
    }


def values_read(node: ir.Node) -> list[ir.Value]:
    """Return all values that a node reads, itself or in a subgraph, each once."""
    inner = (n for g in _graphs_in(node) for n in g)
    values = (v for n in (node, *inner) for v in n.inputs if v is not None)
    return list(dict.fromkeys(v for v in values if v.graph is node.graph or v.graph is None))


def _graphs_in(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the subgraphs of a node, and those of the nodes in them."""
    for attribute in node.attributes.values():
        value = attribute.value
        for graph in value if isinstance(value, tuple) else (value,):
            if isinstance(graph, ir.Graph):
                yield graph
                for inner in graph:
                    yield from _graphs_in(inner)


def _read(message: onnx.ModelProto, folder: Path | None, where: str) -> OnnxModel:
    """Read a message; `folder` holds the second file, None if all weights are in the message."""
    try:
        model = _parsed(message)
        _hold_constants(model.graph, folder or Path())
    except Exception as error:
        raise FileError(f"{where}: not a readable ONNX file ({_innermost(error)})") from error
    is_single_file = not any(t.external_data for t in message.graph.initializer)
    return OnnxModel(model, outline(message), is_single_file)


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model itself if its nodes are in topological order, else a sorted copy."""
    if in_order(model.graph):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    sort_nodes(copy.graph)
    return copy


def _parsed(message: onnx.ModelProto) -> ir.Model:
    with silence_logging(logging.ERROR, "onnx_ir", keep_stderr=True):
        return ir.from_proto(message)


def graph_of(message: onnx.ModelProto) -> ir.Graph:
    """Return the graph of a message without reading its weights."""
    return _parsed(message).graph


def _hold_constants(graph: ir.Graph, folder: Path) -> None:
    """Store initializers and the values of Constant nodes as arrays."""
    files: dict[str, mmap.mmap] = {}
    for node in graph:
        if node.op_type == "Constant" and node.outputs:
            value = node.outputs[0]
            value.const_value = ir.convenience.get_const_tensor(value)
            _hold(value, folder, files)
    for value in graph.initializers.values():
        _hold(value, folder, files)


def _hold(value: ir.Value, folder: Path, files: dict[str, mmap.mmap]) -> None:
    tensor = value.const_value
    if tensor is None or tensor.dtype is ir.DataType.STRING:
        return
    if isinstance(tensor, ir.ExternalTensor):
        tensor.base_dir = folder
        whole = tensor.dtype.bitwidth >= 8 and tensor.size
        array = _view(tensor, files) if whole else np.array(tensor.numpy())
    else:
        array = np.array(tensor.numpy())
    value.const_value = ir.Tensor(array, dtype=tensor.dtype, name=value.name)


def _view(tensor: ir.ExternalTensor, files: dict[str, mmap.mmap]) -> Array:
    """Return a view of a tensor in a second file, which is mapped once.

    onnx_ir would map it for each tensor and hold as many files open. The map is copy-on-write,
    since torch requires writable memory.
    """
    folder, path = Path(tensor.base_dir), Path(tensor.path)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"its data '{tensor.location}' is outside of its folder")
    if str(path) not in files:
        with path.open("rb") as file:
            files[str(path)] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    dtype = tensor.dtype.numpy()
    flat = np.frombuffer(files[str(path)], dtype, tensor.size, tensor.offset or 0)
    return flat.reshape(tensor.shape.numpy())


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
