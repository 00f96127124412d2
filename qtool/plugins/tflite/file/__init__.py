"""Files of TFLite: the schema, a checked reader, a writer, and the model as a value."""

from qtool.plugins.tflite.file.model import (
    TFLITE,
    Model,
    Operator,
    PortNames,
    Quantization,
    Tensor,
)
from qtool.plugins.tflite.file.storage import from_bytes, load, save, to_bytes

__all__ = [
    "TFLITE",
    "Model",
    "Operator",
    "PortNames",
    "Quantization",
    "Tensor",
    "from_bytes",
    "load",
    "save",
    "to_bytes",
]
