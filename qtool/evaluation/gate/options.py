"""What a gate asks for."""

from __future__ import annotations

from dataclasses import dataclass

from qtool.core.option_names import NATIVE
from qtool.core.sentence_pooling import MEAN
from qtool.metrics.named_metrics import AGREEMENT, GateMetric

CONFIDENCE = 0.95


@dataclass(frozen=True)
class GateOptions:
    """What a gate asks for.

    Attributes:
        metric: a name of `METRICS`, or the metric of a user's function.
        max_drop: the largest accepted drop; None: see `default_drop`.
        min_speedup: the least float latency / quantized latency; None: no latency is measured.
        confidence: see `GateMetricResult`.
        other_model: accept a float file with other weights.
        runtime, threads, seconds: see `evaluate_arrays`.
        pooling: see `VectorOutput`.
    """

    metric: str | GateMetric = AGREEMENT
    max_drop: float | None = None
    min_speedup: float | None = None
    confidence: float = CONFIDENCE
    other_model: bool = False
    runtime: str = NATIVE
    threads: int = 1
    seconds: float = 2.0
    pooling: str = MEAN
