"""The integer engine: a QDQ model as a program of integer kernels, and its executor."""

from qtool.integer.lower import lower
from qtool.integer.program import Program, Step

__all__ = ["Program", "Step", "lower"]
