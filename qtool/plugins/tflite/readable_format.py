"""The row of TFLite in the formats that are read without torch."""

from __future__ import annotations

from qtool.backends.readable_file import ReadableFormat
from qtool.core.file_forms import is_tflite
from qtool.core.on_use import OnUse
from qtool.core.option_names import TFLITE_SUFFIX

_HERE = "qtool.plugins.tflite"

READABLE = ReadableFormat(
    TFLITE_SUFFIX,
    is_tflite,
    OnUse(f"{_HERE}.readable:ReadableTflite"),
    OnUse(f"{_HERE}.readable:LitertSession"),
    runtime=OnUse(f"{_HERE}.litert:title"),
)
