"""Calibration: ranges of the planned tensors, observed on data through forward hooks."""

from qtool.calibration.distill import Distilled, distilled
from qtool.calibration.file import Calibration
from qtool.calibration.loop import observe, observing, watched

__all__ = ["Calibration", "Distilled", "distilled", "observe", "observing", "watched"]
