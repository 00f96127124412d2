"""The integer engine: a QDQ model as a program of integer kernels, and its executor."""

from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction, Program
from qtool.backends.onnxruntime.integer_engine.lower import lower

__all__ = ["Instruction", "Program", "lower"]
