"""ONNX Runtime's x64 CPU kernels, bit for bit."""
