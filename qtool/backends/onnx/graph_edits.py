"""Edits of an ONNX graph that several workarounds need."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import OnnxModel
from qtool.core import value_names
from qtool.core.process_lock import silence_logging


def editable(message: onnx.ModelProto) -> ir.Model:
    """Return a model to edit, which may share memory with the message."""
    with silence_logging(logging.ERROR, "onnx_ir", keep_stderr=True):
        return ir.from_proto(message)


class EditedModel:
    """A model to edit, reached by the nodes of its reading, which stays as it is.

    Attributes:
        model: the model.
    """

    def __init__(self, file: OnnxModel) -> None:
        self.model = editable(file.message())
        self._nodes = dict(zip(file.nodes, self.model.graph, strict=True))

    def node(self, node: Node) -> ir.Node:
        """Return the node to edit."""
        return self._nodes[node]


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Return numbers, text and lists of them; tensors and graphs as onnx_ir has them."""
    return {
        name: list(a.value) if isinstance(a.value, tuple) else a.value
        for name, a in node.attributes.items()
    }


def add_int64(model: ir.Model, name: str, values: Any) -> ir.Value:
    """Add an int64 initializer and return its value."""
    array = np.asarray(values, np.int64)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    value.shape = ir.Shape(array.shape)
    model.graph.register_initializer(value)
    return value


def append_node(
    model: ir.Model, node: ir.Node, op_type: str, constants: Sequence[ir.Value | None]
) -> None:
    """Insert an operator behind `node`, whose name, result and readers it takes over.

    Args:
        model: changed in place.
        node: has one output; becomes a helper of the new node, its shape unknown.
        op_type: operator type of the new node.
        constants: inputs of the new node after the output of `node`.
    """
    output = node.outputs[0]
    last = ir.Node("", op_type, [output, *constants], name=node.name)
    result = last.outputs[0]
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    last.replace_input_with(0, output)
    result.name, result.type, result.shape = output.name, output.type, output.shape
    node.name = value_names.helper(str(node.name), node.op_type, str(result.name))
    output.name, output.shape = node.name, None
    model.graph.insert_after(node, last)
