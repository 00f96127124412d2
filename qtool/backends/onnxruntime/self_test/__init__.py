"""The self-test of an ONNX file: written at export, run wherever the file is."""
