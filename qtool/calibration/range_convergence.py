"""Whether ranges were still growing when the data ended: too few samples were given then.

Looked at while data runs through, and kept in no file: it depends on the order of the data, which
the statistics do not.
"""

from __future__ import annotations

from collections.abc import Mapping

from qtool.core.types import UINT8, ObserverSpec
from qtool.observers import OBSERVERS, Histogram, Statistic, range_of

FEW_SAMPLES = 16
THRESHOLDS = ((1.2, 0.05, 2), (2.0, 0.0, 1))
FEW_SAMPLES_THRESHOLDS = (*THRESHOLDS, (1.1, 0.5, 2))
"""(factor, share, number): so many ranges, and that share of all, wider than they were by more than
the factor are worth a note: what is wider still is clipped. The extremes of a few grow with any
data; of fewer than `FEW` samples less is a sign."""

Widths = Mapping[str, float]


class RangeConvergence:
    """Spans of ranges, without the rarest values, at every doubling of the number of samples."""

    def __init__(self, specs: Mapping[str, ObserverSpec]) -> None:
        self._specs = specs
        self._recorded: list[tuple[int, Widths]] = []  # at most the last two

    def record(self, samples: int, statistics: Mapping[str, Statistic]) -> None:
        """After a batch; `samples` in all so far."""
        if not self._recorded or samples >= 2 * self._recorded[-1][0]:
            self._recorded = [*self._recorded[-1:], (samples, self._range_widths(statistics))]

    def notes(self, samples: int, statistics: Mapping[str, Statistic]) -> tuple[str, ...]:
        """After the last batch: a sentence where the last third to half of the samples or so made
        ranges wider."""
        before = [(count, spans) for count, spans in self._recorded if count < samples]
        if not before:
            return ()
        (count, old), now = before[-1], self._range_widths(statistics)
        by = {n: now[n] / s for n, s in old.items() if s > 0}
        for factor, share, number in (
            FEW_SAMPLES_THRESHOLDS if samples < FEW_SAMPLES else THRESHOLDS
        ):
            grown = sum(growth > factor for growth in by.values())
            if grown >= max(number, share * len(old)):
                break
        else:
            return ()
        worst = max(by, key=lambda name: by[name])
        note = (
            f"the last {samples - count} of {samples} calibration samples made {grown} of "
            f"{len(old)} ranges wider by more than {100 * (factor - 1):.0f} %, that of '{worst}' "
            f"{by[worst]:.2f} times as wide: what is wider still is clipped; give more samples"
        )
        return (note,)

    def _range_widths(self, statistics: Mapping[str, Statistic]) -> Widths:
        found = {}
        for name, statistic in statistics.items():
            spec = self._specs[name]
            if OBSERVERS[spec.name].estimate is None or statistic.axis is not None:
                continue
            if isinstance(statistic, Histogram):  # others search for a range, which takes long
                spec = ObserverSpec("percentile", tuple(statistic.settings.items()))
            if not statistic.empty:
                low, high = range_of(spec, statistic, UINT8, False)
                found[name] = float(high) - float(low)
        return found
