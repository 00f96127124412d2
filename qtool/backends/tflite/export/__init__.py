"""Writing of TFLite files from the QDQ graph of a plan."""

from qtool.backends.tflite.export.calls import check_writable
from qtool.backends.tflite.export.convert import Written, to_tflite, write_float
from qtool.backends.tflite.export.values import Layout, Value

__all__ = ["Layout", "Value", "Written", "check_writable", "to_tflite", "write_float"]
