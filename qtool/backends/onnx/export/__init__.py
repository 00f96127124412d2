"""Export: the ONNX writers, lowerings of the one plan."""

from qtool.backends.onnx.export.float_file import float_onnx, write_float
from qtool.backends.onnx.export.lower_to_qdq import lower_to_qdq
from qtool.backends.onnx.export.onnx_file import to_onnx
from qtool.backends.onnx.export.qoperator import is_qoperator, to_qoperator

__all__ = [
    "float_onnx",
    "is_qoperator",
    "lower_to_qdq",
    "to_onnx",
    "to_qoperator",
    "write_float",
]
