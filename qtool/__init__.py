"""qtool: a trained PyTorch model in, a verified int8 ONNX model out."""
