"""Analysis: what a model costs and gains by being quantized, measured.

Accuracy, latency, profile, layers and sensitivity of models side by side; `qtool.report` shows
what is found here.
"""

from qtool.analysis.evaluate import Evaluation, Side, evaluate, sqnr
from qtool.analysis.latency import Latency, interleaved
from qtool.analysis.sensitivity import Sensitivity, sweep
from qtool.analysis.speed import Speed, speed_of

__all__ = [
    "Evaluation",
    "Latency",
    "Sensitivity",
    "Side",
    "Speed",
    "evaluate",
    "interleaved",
    "speed_of",
    "sqnr",
    "sweep",
]
