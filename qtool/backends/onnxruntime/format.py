"""The row of ONNX in the formats of model files."""

from __future__ import annotations

from pathlib import Path

from qtool.backends.model_file import FileFormat
from qtool.backends.onnxruntime.onnx_file import OnnxFile
from qtool.backends.onnxruntime.session import OnnxSession
from qtool.core import plugins
from qtool.core.on_use import OnUse, load

_HERE = "qtool.backends.onnxruntime"


def _session(path: str | Path, threads: int) -> OnnxSession:
    """Open a file, as written where this machine lacks the kernels that it is for."""
    here = not Path(path).is_file() or OnnxFile(Path(path)).runs_here
    return OnnxSession(path, threads, as_written=not here)


ONNX = FileFormat(
    ("qdq", "qoperator"),
    OnnxFile.suffix,
    lambda _: True,
    OnnxFile,
    _session,
    OnUse("qtool.backends.onnx.export:write_float"),
    OnUse(f"{_HERE}.planned_export:OnnxExport"),
    OnUse(f"{_HERE}.machines:check_measurable"),
    tuple(map(load, plugins.parts("runtimes").values())),
)
