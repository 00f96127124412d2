"""The float model as a file of any format, which int8 files are compared with."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.onnx.export import write_float as write_onnx
from qtool.backends.tflite.export import write_float as write_tflite
from qtool.core.graph import FloatGraph
from qtool.core.option_names import TFLITE_SUFFIX
from qtool.planning.targets import DEFAULT


def write_float(graph: FloatGraph, path: str | Path, target_name: str = DEFAULT) -> Path:
    """Write the canonical graph in float, and return the path.

    Args:
        graph: the graph.
        path: of an ONNX file, in the operator set of the target, or of a .tflite file.
        target_name: name of the target.

    Raises:
        ExportError: an operator cannot be written.
        FileError: the file cannot be written.
    """
    is_tflite = Path(path).suffix.lower() == TFLITE_SUFFIX
    return (write_tflite if is_tflite else write_onnx)(graph, path, target_name)
