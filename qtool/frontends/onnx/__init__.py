"""ONNX frontend: a float ONNX file becomes the float graph."""
