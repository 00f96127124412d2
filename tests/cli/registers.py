"""A module of a person, which registers a target and an observer."""

from dataclasses import replace

import qtool
from qtool.observers import MinMax
from qtool.planning.targets import TARGETS

qtool.register_target(replace(TARGETS["onnxruntime"], name="mine", description="a runtime of mine"))
qtool.register_observer(
    "all_of_it", statistic=MinMax, estimate=lambda statistic, *rest: statistic.extent()
)
