"""ONNX models, read: producers and readers of each tensor, constants and attributes as values.

All code that inspects an ONNX graph uses this module. Weights in a second file are memory-mapped
views, read when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import onnx
from onnx import numpy_helper

from qtool.backends.onnx.graph import Graph, Node, StoredTensors, Value, read_graph
from qtool.backends.onnx.initializers import reading, with_initializers
from qtool.backends.onnx.nested_graphs import in_order, sort_nodes
from qtool.backends.onnx.storage import load_outline, outline
from qtool.core.types import Array


class OnnxModel:
    """A model that was read.

    Attributes:
        graph: its graph; constants are arrays. Nodes without names are named after their first
            output.
        outline: the model as a message without its weights, for checks and shape inference.
        is_single_file: whether all weights are in the model file.
        has_unnamed_nodes: whether the source has nodes without names.
    """

    def __init__(self, graph: Graph, outline: onnx.ModelProto, is_single_file: bool) -> None:
        self.graph = graph
        self.outline = outline
        self.is_single_file = is_single_file
        self.has_unnamed_nodes = any(not n.message.name for n in graph)

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
    def nodes(self) -> list[Node]:
        """The nodes of the main graph, in its order."""
        return list(self.graph)

    @property
    def inputs(self) -> list[Value]:
        """The inputs without a stored value."""
        return [v for v in self.graph.inputs if v.array is None]

    @property
    def opset(self) -> int:
        """The version of the operators of ONNX."""
        versions = (o.version for o in self.outline.opset_import if not o.domain)
        return next(versions, 13)

    @property
    def outputs(self) -> list[Value]:
        return list(self.graph.outputs)

    def readers(self, value: Value) -> list[Node]:
        """Return the nodes that read a tensor, directly or in a subgraph, each once."""
        return list(dict.fromkeys(use.node.around or use.node for use in value.uses))

    def only_reader(self, value: Value) -> Node | None:
        """Return the only node that reads a tensor, None for several readers or an output."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and not value.is_output else None

    def message(self) -> onnx.ModelProto:
        """Return the model with its weights, its nodes named as here."""
        small = {t.name: t for t in self.outline.graph.initializer}
        stored = (
            small[name] if name in small else _tensor_of(value)
            for name, value in self.graph.initializers.items()
        )
        whole = with_initializers(self.outline, stored)
        names, infos = {v.name for v in self.graph.inputs}, list(whole.graph.input)
        del whole.graph.input[:]
        whole.graph.input.extend(i for i in infos if i.name in names)
        for node, read in zip(whole.graph.node, self.graph, strict=True):
            node.name = read.name
        return whole

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


def name_of(value: Value | None) -> str:
    """Return the name of a value, "" for an omitted input."""
    return "" if value is None else value.name


def is_constant(value: Value | None) -> bool:
    """Return whether a tensor is a constant."""
    return value is not None and value.array is not None


def array_of(value: Value | None) -> Array | None:
    """Return a constant as an array (text as objects), None if it is not constant."""
    return None if value is None else value.array


def input_at(node: Node, index: int) -> Value | None:
    """Return an input of a node, None if it has no such input."""
    return node.inputs[index] if len(node.inputs) > index else None


def values_read(node: Node) -> list[Value]:
    """Return all values that a node reads, itself or in a subgraph, each once."""
    values = (v for n in (node, *node.inner) for v in n.inputs if v is not None)
    return list(dict.fromkeys(v for v in values if not v.is_inner))


def graph_of(message: onnx.ModelProto) -> Graph:
    """Return the graph of a message without reading its weights."""
    return read_graph(message.graph, message.graph.node)


def _read(message: onnx.ModelProto, folder: Path | None, where: str) -> OnnxModel:
    """Read a message; `folder` holds the second file, None if all weights are in the message."""
    with reading(where):  # the nodes of the outline: those of the message would hold its weights
        bare = outline(message)
        tensors = StoredTensors(folder)
        graph = read_graph(message.graph, bare.graph.node, tensors.array)
    is_single_file = not any(t.external_data for t in message.graph.initializer)
    return OnnxModel(graph, bare, is_single_file)


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model itself if its nodes are in topological order, else a sorted copy."""
    if in_order(model.graph):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    sort_nodes(copy.graph)
    return copy


def _tensor_of(value: Value) -> onnx.TensorProto:
    assert value.array is not None
    return numpy_helper.from_array(value.array, value.name)
