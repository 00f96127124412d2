"""The row of ONNX in the formats of model files."""

from __future__ import annotations

from qtool.backends.model_file import FileFormat
from qtool.backends.onnxruntime.readable import READABLE
from qtool.core.on_use import OnUse

_HERE = "qtool.backends.onnxruntime"

ONNX = FileFormat(
    ("qdq", "qoperator"),
    READABLE.suffix,
    READABLE.fits,
    OnUse(f"{_HERE}.model_file:OnnxFile"),
    READABLE.session,
    OnUse("qtool.backends.onnx.export:write_float"),
    OnUse(f"{_HERE}.planned_export:OnnxExport"),
    OnUse(f"{_HERE}.model_file:check_measurable"),
    READABLE.other_runtimes,
)
