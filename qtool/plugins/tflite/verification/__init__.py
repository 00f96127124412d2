"""Verification of TFLite files: in LiteRT's reference kernels, against the integer engine."""

from qtool.plugins.tflite.verification.codes import (
    compare_delegate_codes,
    compare_litert_codes,
)

__all__ = [
    "compare_delegate_codes",
    "compare_litert_codes",
]
