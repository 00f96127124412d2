"""A metric as it was measured of a float file and of another one."""

from qtool.metrics.intervals import Interval
from qtool.metrics.metric import Metric


def top_1(drop: float, low: float | None = None, high: float | None = None) -> Metric:
    """Return a top-1 accuracy of which a file loses `drop`; without ends it has no interval."""
    ends = None if low is None or high is None else Interval(drop, low, high)
    return Metric("top-1", True, True, "built in", (0.9, 0.9 - drop), (0.0, drop), (ends, ends))
