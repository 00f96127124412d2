"""The float model as an ONNX file, which int8 files are compared with."""

from __future__ import annotations

from pathlib import Path

import onnx

from qtool.backends.onnx.export.fusions import fuse
from qtool.backends.onnx.export.long_kernels import pad_long_kernels_apart
from qtool.backends.onnx.export.onnx_file import to_onnx
from qtool.backends.onnx.file_info import float_metadata
from qtool.backends.onnx.storage import atomic_save
from qtool.core.graph import FloatGraph
from qtool.planning.targets import DEFAULT, target


def float_onnx(graph: FloatGraph, target_name: str = DEFAULT) -> onnx.ModelProto:
    """Return the float model as ONNX, from the canonical graph, in the opset of the target.

    It is as fast as files of torch's exporters: padding of long kernels stays an operator.

    Raises:
        ExportError: an operator cannot be written; names it.
    """
    chosen = target(target_name)
    module = fuse(graph.module, chosen)
    model = to_onnx(module, graph, chosen.file.opset, chosen.file.ir_version, float_metadata())
    pad_long_kernels_apart(model, module)
    return model


def write_float(graph: FloatGraph, path: str | Path, target_name: str = DEFAULT) -> Path:
    """Write `float_onnx` to a file and return its path.

    Raises:
        ExportError: an operator cannot be written.
        FileError: the file cannot be written.
    """
    path = Path(path)
    with atomic_save(float_onnx(graph, target_name), path):
        return path
