"""Writing of TFLite files from the QDQ graph of a plan."""

from qtool.backends.tflite.export.convert import METADATA, Written, to_tflite
from qtool.backends.tflite.export.values import Layout, Value

__all__ = ["METADATA", "Layout", "Value", "Written", "to_tflite"]
