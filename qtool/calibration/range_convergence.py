"""Warns when ranges still grow at the end of the data: there are too few calibration samples.

The result is a note and stored in no file: unlike the statistics it depends on the order of the
data.
"""

from __future__ import annotations

from collections.abc import Mapping

from qtool.calibration.calibration import Calibration
from qtool.core.types import UINT8, ObserverSpec
from qtool.observers import Histogram, range_of

FEW_SAMPLES = 16
THRESHOLDS = ((1.2, 0.05, 2), (2.0, 0.0, 1))
FEW_SAMPLES_THRESHOLDS = (*THRESHOLDS, (1.1, 0.5, 2))
"""(factor, share, number): warn when at least `number` ranges and at least `share` of all of them
grew by more than `factor`. A few ranges grow with any data; with fewer than `FEW_SAMPLES` samples
smaller growth is a sign, too."""

Widths = Mapping[str, float]


class RangeConvergence:
    """Widths of ranges, without the rarest values, at every doubling of the number of samples."""

    def __init__(self) -> None:
        self._recorded: list[tuple[int, Widths]] = []  # at most the last two

    def record(self, samples: int, calibration: Calibration) -> None:
        """Record the widths after a batch; `samples` is the number of samples so far."""
        if not self._recorded or samples >= 2 * self._recorded[-1][0]:
            widths = _range_widths(calibration)
            self._recorded = [*self._recorded[-1:], (samples, widths)]

    def notes(self, samples: int, calibration: Calibration) -> tuple[str, ...]:
        """Return a note if the last third to half of the samples made ranges wider.

        Call it after the last batch.
        """
        before = [(count, widths) for count, widths in self._recorded if count < samples]
        if not before:
            return ()
        (count, old), now = before[-1], _range_widths(calibration)
        growth = {n: now[n] / w for n, w in old.items() if w > 0}
        thresholds = FEW_SAMPLES_THRESHOLDS if samples < FEW_SAMPLES else THRESHOLDS
        for factor, share, number in thresholds:
            wider = sum(each > factor for each in growth.values())
            if wider >= max(number, share * len(old)):
                break
        else:
            return ()
        worst = max(growth, key=lambda name: growth[name])
        note = (
            f"calibration has not settled: the last {samples - count} of {samples} samples widened "
            f"{wider} of {len(old)} ranges by over {100 * (factor - 1):.0f} % ('{worst}' by a "
            f"factor of {growth[worst]:.2f}); use more samples"
        )
        return (note,)


def _range_widths(calibration: Calibration) -> Widths:
    widths = {}
    for name, statistic in calibration.pooled().statistics.items():
        spec = calibration.specs[name]
        if isinstance(statistic, Histogram):  # others search for a range, which is slow
            spec = ObserverSpec("percentile", tuple(statistic.settings.items()))
        if statistic.axis is None and not statistic.empty:
            low, high = range_of(spec, statistic, UINT8, False)
            widths[name] = float(high) - float(low)
    return widths
