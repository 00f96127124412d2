"""Workarounds of OpenVINO, one per module."""

from qtool.backends.openvino.workarounds.reduce_extremes_before_quantize import REDUCE_EXTREMES
from qtool.backends.openvino.workarounds.single_axis_pads import SINGLE_AXIS_PADS

OPENVINO_WORKAROUNDS = (REDUCE_EXTREMES, SINGLE_AXIS_PADS)

__all__ = ["OPENVINO_WORKAROUNDS"]
