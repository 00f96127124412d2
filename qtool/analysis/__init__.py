"""Analysis: accuracy and latency of a model and its quantized form, side by side."""

from qtool.analysis.evaluate import Evaluation, Side, evaluate, sqnr
from qtool.analysis.latency import Latency, interleaved

__all__ = ["Evaluation", "Latency", "Side", "evaluate", "interleaved", "sqnr"]
