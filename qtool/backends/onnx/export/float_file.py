"""The float model as an ONNX file, which int8 files are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir

from qtool.backends.onnx.export.fusions import fuse
from qtool.backends.onnx.export.long_kernels import pad_long_kernels_apart
from qtool.backends.onnx.export.onnx_file import to_onnx
from qtool.backends.onnx.export.weight_storage import write_weights
from qtool.backends.onnx.file_info import float_metadata
from qtool.backends.onnx.storage import atomic_save
from qtool.core import graph as G
from qtool.core.atomic import write_atomic
from qtool.core.graph import FloatGraph
from qtool.core.graph.deferred import is_deferred
from qtool.planning.targets import DEFAULT, target


def float_onnx(
    graph: FloatGraph,
    target_name: str = DEFAULT,
    store: Callable[[ir.Model], None] = lambda _: None,
) -> onnx.ModelProto:
    """Return the float model as ONNX, from the canonical graph, in the opset of the target.

    It is as fast as files of torch's exporters: padding of long kernels stays an operator.

    Args:
        graph: the graph.
        target_name: name of the target.
        store: see `to_onnx`.

    Raises:
        ExportError: an operator cannot be written; names it.
    """
    chosen = target(target_name)
    module = fuse(graph.module, chosen)
    versions = chosen.file.opset, chosen.file.ir_version
    model = to_onnx(module, graph, *versions, float_metadata(), store=store)
    pad_long_kernels_apart(model, module)
    return model


def write_float(graph: FloatGraph, path: str | Path, target_name: str = DEFAULT) -> Path:
    """Write `float_onnx` to a file and return its path.

    Weights that are deferred are written one after the other, into a data file next to it.

    Raises:
        ExportError: an operator cannot be written.
        FileError: the file cannot be written.
    """
    path = Path(path)
    constants = graph.graph.find_nodes(op="get_attr")
    if any(is_deferred(G.tensor(graph.module, node)) for node in constants):
        store = partial(write_weights, folder=path.parent, name=path.name)
        write_atomic(path, float_onnx(graph, target_name, store).SerializeToString())
        return path
    with atomic_save(float_onnx(graph, target_name), path):
        return path
