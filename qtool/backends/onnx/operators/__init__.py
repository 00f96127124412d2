"""ONNX forms of torch operators, a module by family."""

from qtool.backends.onnx.operators.writer_table import (
    CUSTOM_FORMS,
    WRITERS,
    Body,
    functions_of,
    kernel_of,
    register_custom_operator,
    writers,
)

__all__ = [
    "CUSTOM_FORMS",
    "WRITERS",
    "Body",
    "functions_of",
    "kernel_of",
    "register_custom_operator",
    "writers",
]
