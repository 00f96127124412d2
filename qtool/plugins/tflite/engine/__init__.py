"""TFLite models as programs of the integer engine."""

from qtool.plugins.tflite.engine.lower import lower

__all__ = ["lower"]
