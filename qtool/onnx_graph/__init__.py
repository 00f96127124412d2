"""ONNX files: what qtool writes into them and reads out of them again."""
