"""A conversion: a captured model, what was seen of it, and the steps that change it."""

from qtool.conversion.captured import Captured, capture_model
from qtool.conversion.conversion import (
    SOLVE,
    Conversion,
    Step,
    convert_by,
    probes_of,
    replay,
)
from qtool.conversion.solve import Parameters, solve_parameters

__all__ = [
    "SOLVE",
    "Captured",
    "Conversion",
    "Parameters",
    "Step",
    "capture_model",
    "convert_by",
    "probes_of",
    "replay",
    "solve_parameters",
]
