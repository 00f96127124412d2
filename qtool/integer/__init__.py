"""The integer engine: a QDQ model as a program of integer kernels, and its executor."""

from qtool.integer.lower import DEFAULT_PROFILE, lower
from qtool.integer.program import Program, Step

__all__ = ["DEFAULT_PROFILE", "Program", "Step", "lower"]
