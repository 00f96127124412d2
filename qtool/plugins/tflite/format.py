"""The row of TFLite in the formats of model files."""

from __future__ import annotations

from qtool.backends.model_file import FileFormat
from qtool.core.on_use import OnUse
from qtool.core.option_names import C_SOURCE, TFLITE_SUFFIX
from qtool.plugins.tflite.readable_format import READABLE

_HERE = "qtool.plugins.tflite"

FORMAT = FileFormat(
    (TFLITE_SUFFIX[1:], C_SOURCE),
    READABLE.suffix,
    READABLE.fits,
    OnUse(f"{_HERE}.model_file:TfliteModelFile"),
    READABLE.session,
    OnUse(f"{_HERE}.export:write_float"),
    OnUse(f"{_HERE}.planned_export:TfliteExport"),
    OnUse(f"{_HERE}.model_file:check_measurable"),
    runtime=READABLE.runtime,
    check_graph=OnUse(f"{_HERE}.export:check_writable"),
)
