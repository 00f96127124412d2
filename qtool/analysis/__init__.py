"""Analysis: what a model costs and gains by being quantized, measured.

Accuracy, latency, profile, layers and sensitivity of models side by side; `qtool.report` shows
what is found here.
"""

from qtool.analysis.evaluate import Evaluation, Side, evaluate, sqnr
from qtool.analysis.latency import Latency, interleaved
from qtool.analysis.sensitivity import Sensitivity, sweep

__all__ = [
    "Evaluation",
    "Latency",
    "Sensitivity",
    "Side",
    "evaluate",
    "interleaved",
    "sqnr",
    "sweep",
]
