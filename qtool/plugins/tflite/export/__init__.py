"""Writing of TFLite files from the QDQ graph of a plan."""

from qtool.plugins.tflite.export.calls import check_writable
from qtool.plugins.tflite.export.convert import (
    Written,
    gains_by_one_sample,
    to_tflite,
    write_float,
)
from qtool.plugins.tflite.export.values import Layout, Value

__all__ = [
    "Layout",
    "Value",
    "Written",
    "check_writable",
    "gains_by_one_sample",
    "to_tflite",
    "write_float",
]
