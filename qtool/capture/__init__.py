"""Capture: one file per kind of source, each giving the same float graph."""

from qtool.capture.from_onnx import OnnxModule, capture_onnx, load_onnx, map_onnx
from qtool.capture.module import capture_module
from qtool.capture.program import from_program, load_program

__all__ = [
    "OnnxModule",
    "capture_module",
    "capture_onnx",
    "from_program",
    "load_onnx",
    "load_program",
    "map_onnx",
]
