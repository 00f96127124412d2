"""Verification of TFLite files: in LiteRT's reference kernels, against the integer engine."""

from qtool.verification.tflite.codes import compare_litert_codes
from qtool.verification.tflite.coverage import tflite_coverage
from qtool.verification.tflite.inputs import file_batches, random_batches

__all__ = ["compare_litert_codes", "file_batches", "random_batches", "tflite_coverage"]
