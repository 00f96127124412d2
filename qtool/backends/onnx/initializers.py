"""Initializers of ONNX models, sparse ones, and the files that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qtool.backends.onnx.nested_graphs import all_graphs
from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import FileError
from qtool.core.paths import is_file
from qtool.core.remedies import OtherFile, Remedy


@contextmanager
def reading(path: str | Path, *remedies: Remedy) -> Iterator[None]:
    """Raise what reading an ONNX file raises as a FileError with its path."""
    try:
        yield
    except FileError as error:
        raise FileError(f"{path}: {error.problem}", *error.remedies) from error
    except Exception as error:
        raise FileError(f"{path}: not a readable ONNX file ({error})", *remedies) from error


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


def check_weight_files(model: onnx.ModelProto, folder: Path) -> None:
    """Check that the files which a model names for its weights are there, and whole.

    Files outside of the folder are the business of what reads them, and refuses them.

    Args:
        model: the model, without its external weights.
        folder: folder of the model file.

    Raises:
        FileError: a file is missing, cut off, or something else that a download left.
        ValueError: an offset is no number.
    """
    ends: dict[str, tuple[int, str]] = {}
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if name := entries.get("location"):
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
            ends[name] = max(ends.get(name, (0, "")), (end, tensor.name))
    for name, (end, tensor_name) in ends.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            continue
        if not is_file(file):
            raise FileError(
                f"{file}, which holds weights of the model, is not there",
                OtherFile("put it into the folder of the model, under this name"),
            )
        check_download(file, FileError)
        if (size := file.stat().st_size) < end:
            raise FileError(
                f"{file} is cut off after {size:,} bytes: '{tensor_name}' is not whole in it",
                DOWNLOAD,
            )


def float_bytes(path: Path) -> int:
    """Return the size of the weights of a file in float32; 0 for a file that is no model."""
    with suppress(Exception):  # it is refused where it is read
        graph = onnx.load(path, load_external_data=False).graph
        return sum(4 * prod(tensor.dims) for tensor in graph.initializer)
    return 0


def notes_on_inputs(model: onnx.ModelProto) -> list[str]:
    """Return a sentence on a float file whose weights are inputs, too, as exporters wrote them up
    to 2019: from IR version 4 on a caller can replace them, so that ONNX Runtime neither folds nor
    packs them."""
    stored = {i.name for i in model.graph.initializer}
    if model.ir_version < 4 or stored.isdisjoint(i.name for i in model.graph.input):
        return []
    why = "ONNX Runtime cannot prepare for its kernels: with initializers alone it is faster"
    return [f"the float file lists weights as inputs, which {why}"]
