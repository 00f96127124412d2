"""The door: what a person calls. Models are made in `make.py` and looked at in `examine.py`."""

from qtool.api.choose import TunedModel, explain, tune
from qtool.api.examine import compare, evaluate, report, verify
from qtool.api.make import calibrate, convert, quantize
from qtool.api.other_cpus import verify_on
from qtool.api.quantized import QuantizedModel

__all__ = [
    "QuantizedModel",
    "TunedModel",
    "calibrate",
    "compare",
    "convert",
    "evaluate",
    "explain",
    "quantize",
    "report",
    "tune",
    "verify",
    "verify_on",
]
