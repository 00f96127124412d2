"""Export: the ONNX writers, lowerings of the one plan."""

from qtool.export.lower import lower_to_qdq
from qtool.export.onnx_file import to_onnx, write_onnx

__all__ = ["lower_to_qdq", "to_onnx", "write_onnx"]
