"""A model file of any format as a value: what reports, comparisons and searches read."""

from qtool.evaluation.files.deployment import AcceleratorFacts, Deployment
from qtool.evaluation.files.model_file import (
    Conversion,
    ModelFile,
    NodeKernel,
    StoredParameters,
    check_quantized,
    open_file,
    quantization_warnings,
)
from qtool.evaluation.files.parameters import TensorParameters

__all__ = [
    "AcceleratorFacts",
    "Conversion",
    "Deployment",
    "ModelFile",
    "NodeKernel",
    "StoredParameters",
    "TensorParameters",
    "check_quantized",
    "open_file",
    "quantization_warnings",
]
