"""TFLite models as programs of the integer engine."""

from qtool.backends.tflite.engine.lower import lower, tensor_names

__all__ = ["lower", "tensor_names"]
