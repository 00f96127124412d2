"""One pass over data of any form, as `evaluate` and `report` make it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qtool.evaluation.feeder import Feeder
from qtool.evaluation.measure.output_pass import Reference, measure_arrays
from qtool.metrics.sample_statistics import SampleStatistics


def measure_outputs(files: Sequence[Path], data: Iterable[Any], **how: Any) -> SampleStatistics:
    """The statistics of the outputs of files on data; the first is the reference."""
    reference = Reference(files[0])
    return measure_arrays(reference, files[1:], Feeder(reference.session, data), **how)
