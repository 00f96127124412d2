"""Initializers of ONNX models; sparse ones as dense ones, which ONNX Runtime makes of them, too."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtool.backends.onnx.nested_graphs import all_graphs


def with_initializers(
    model: onnx.ModelProto, stored: Iterable[onnx.TensorProto]
) -> onnx.ModelProto:
    """Return a copy with other initializers; those of the model are not copied."""
    bare = onnx.ModelProto()
    _copy_all_but(model, bare, "graph")
    _copy_all_but(model.graph, bare.graph, "initializer")
    bare.graph.initializer.extend(stored)
    return bare


def _copy_all_but(source: Any, into: Any, field: str) -> None:
    for known, value in source.ListFields():
        if known.name == field:
            continue
        if hasattr(value, "extend"):  # a repeated field
            getattr(into, known.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(into, known.name).CopyFrom(value)
        else:
            setattr(into, known.name, value)


_MOST = 2**30
"""Largest size in bytes of a dense tensor: the sizes that a few bytes state have no other limit."""


def expand_sparse(model: onnx.ModelProto) -> None:
    """Make sparse initializers and sparse Constants dense, in place.

    Raises:
        ValueError: a tensor is damaged, or too large.
        IndexError: an index is outside of a tensor.
    """
    for graph in all_graphs(model.graph):
        graph.initializer.extend(
            _dense(each, each.values.name) for each in graph.sparse_initializer
        )
        del graph.sparse_initializer[:]
    nodes = [n for graph in all_graphs(model.graph) for n in graph.node]
    for node in (*nodes, *(n for f in model.functions for n in f.node)):
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor"):
                dense = _dense(attribute.sparse_tensor, "")
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    values, indices = (numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    shape = tuple(sparse.dims)
    if prod(shape) * values.dtype.itemsize > _MOST:
        raise ValueError(f"the sparse tensor '{name}' has the shape {list(shape)}: it is too large")
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    if (indices < 0).any():
        raise IndexError(f"the sparse tensor '{name}' has a negative index")
    flat = np.zeros(prod(shape), values.dtype)
    flat[indices] = values
    return numpy_helper.from_array(flat.reshape(shape), name)
