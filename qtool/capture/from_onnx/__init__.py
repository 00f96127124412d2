"""ONNX files as input."""

from qtool.capture.from_onnx.file import capture_onnx, load_onnx, map_onnx
from qtool.capture.from_onnx.module import OnnxModule

__all__ = ["OnnxModule", "capture_onnx", "load_onnx", "map_onnx"]
