"""qtool: a trained PyTorch model in, a verified int8 ONNX model out.

    calibration = qtool.calibrate(model, batches)
    quantized = qtool.convert(model, calibration)
    quantized.export("model.int8.onnx")

Names are imported when they are first used, so that `qtool --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.api import calibrate, convert, quantize
    from qtool.calibration import Calibration
    from qtool.conversion import Captured, capture_model
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
    from qtool.verification import Coverage

_HOMES = {
    "api": "calibrate convert quantize",
    "calibration": "Calibration",
    "conversion": "Captured capture_model",
    "errors": "CalibrationError CaptureError DataError ExportError FileError KernelError PassError "
    "PlanError QtoolError VerificationError",
    "plan": "QuantPlan",
    "quantized": "QuantizedModel Verification",
    "verification": "Coverage",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Calibration",
    "CalibrationError",
    "CaptureError",
    "Captured",
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
    "capture_model",
    "convert",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'qtool' has no attribute '{name}'")
    return getattr(import_module(f"qtool.{_HOME_OF[name]}"), name)
