"""qtool: a trained PyTorch model in, a verified int8 ONNX model out.

    calibration = qtool.calibrate(model, batches)
    quantized = qtool.convert(model, calibration)
    quantized.export("model.int8.onnx")
"""

from qtool.api import Captured, calibrate, capture, convert, quantize
from qtool.calibration import Calibration
from qtool.errors import (
    CalibrationError,
    CaptureError,
    DataError,
    ExportError,
    FileError,
    KernelError,
    PassError,
    PlanError,
    QtoolError,
    VerificationError,
)
from qtool.plan import QuantPlan
from qtool.quantized import QuantizedModel, Verification
from qtool.verify import Coverage

__all__ = [
    "Calibration",
    "CalibrationError",
    "Captured",
    "CaptureError",
    "Coverage",
    "DataError",
    "ExportError",
    "FileError",
    "KernelError",
    "PassError",
    "PlanError",
    "QtoolError",
    "QuantPlan",
    "QuantizedModel",
    "Verification",
    "VerificationError",
    "calibrate",
    "capture",
    "convert",
    "quantize",
]
