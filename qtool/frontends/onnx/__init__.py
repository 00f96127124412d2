"""ONNX frontend: a float ONNX file becomes the float graph."""

from qtool.frontends.onnx.onnx_file import capture_onnx, load_onnx, map_onnx
from qtool.frontends.onnx.onnx_module import OnnxModule

__all__ = ["OnnxModule", "capture_onnx", "load_onnx", "map_onnx"]
