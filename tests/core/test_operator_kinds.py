"""Operators known by name alone."""

from __future__ import annotations

from qtool.core.operator_kinds import tensors_that_jump


def test_a_jump_reaches_to_the_next_quantization() -> None:
    onnx = [
        ("Add", ["x", "y"], ["sum"]),
        ("GreaterOrEqual", ["sum", "x"], ["mask"]),
        ("Where", ["mask", "x", "y"], ["chosen"]),
        ("QuantizeLinear", ["chosen", "scale"], ["codes"]),
        ("DequantizeLinear", ["codes", "scale"], ["again"]),
        ("Relu", ["again"], ["out"]),
    ]
    assert tensors_that_jump(onnx) == {"mask", "chosen", "codes"}


def test_types_of_tflite_are_known_too() -> None:
    tflite = [
        ("GREATER_EQUAL", (0, 1), (2,)),
        ("SELECT_V2", (2, 0, 1), (3,)),
        ("DEQUANTIZE", (3,), (4,)),
        ("ARG_MAX", (4,), (5,)),
    ]
    assert tensors_that_jump(tflite) == {2, 3, 5}
