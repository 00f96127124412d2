"""Files of TFLite: the schema, a checked reader, a writer, and the model as a value."""

from qtool.backends.tflite.file.model import (
    TFLITE,
    Model,
    Operator,
    Quantization,
    Tensor,
    is_tflite,
)
from qtool.backends.tflite.file.storage import from_bytes, load, save, to_bytes

__all__ = [
    "TFLITE",
    "Model",
    "Operator",
    "Quantization",
    "Tensor",
    "from_bytes",
    "is_tflite",
    "load",
    "save",
    "to_bytes",
]
