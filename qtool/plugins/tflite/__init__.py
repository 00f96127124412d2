"""TFLite (LiteRT) and TensorFlow Lite Micro: targets, files, and arithmetic of their kernels."""

from qtool.core.plugins import Plugin

_HERE = "qtool.plugins.tflite"

PLUGIN = Plugin(
    targets={
        "tflite": f"{_HERE}.targets:TFLITE",
        "tflite-micro": f"{_HERE}.targets:TFLITE_MICRO",
    },
    formats={"tflite": f"{_HERE}.format:FORMAT"},
    profiles={
        "tflite": f"{_HERE}.profiles:REFERENCE",
        "tflite-2": f"{_HERE}.profiles:REFERENCE_2",
        "tflite-micro": f"{_HERE}.profiles:MICRO",
        "tflite-optimized": f"{_HERE}.profiles:OPTIMIZED",
        "xnnpack": f"{_HERE}.profiles:XNNPACK",
    },
)
