"""Checks of an ONNX file in ONNX Runtime: against the plan, and against the integer engine."""
