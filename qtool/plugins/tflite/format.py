"""The row of TFLite in the formats of model files."""

from __future__ import annotations

from qtool.backends.model_file import FileFormat
from qtool.core.file_forms import is_tflite
from qtool.core.on_use import OnUse
from qtool.core.option_names import TFLITE_SUFFIX

_HERE = "qtool.plugins.tflite"

FORMAT = FileFormat(
    (TFLITE_SUFFIX[1:],),
    TFLITE_SUFFIX,
    is_tflite,
    OnUse(f"{_HERE}.model_file:TfliteModelFile"),
    OnUse(f"{_HERE}.session:LitertSession"),
    OnUse(f"{_HERE}.export:write_float"),
    OnUse(f"{_HERE}.planned_export:TfliteExport"),
    OnUse(f"{_HERE}.deployment:check_measurable"),
    runtime=OnUse(f"{_HERE}.litert:title"),
    check_graph=OnUse(f"{_HERE}.export:check_writable"),
)
