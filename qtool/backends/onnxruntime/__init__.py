"""ONNX Runtime: sessions, the arithmetic of its CPU kernels, and the integer engine on top."""
