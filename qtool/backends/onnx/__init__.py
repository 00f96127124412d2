"""ONNX files: reading, checking and storing models, and the metadata that qtool writes."""
