"""ONNX Runtime on 64-bit ARM CPUs: int8 activations with int8 weights.

Its kernels (mlas/lib/platform.cpp) take int8 x int8 on every path: matrix products with sdot or
smmla, symmetric convolutions, and the packed symmetric product (SymmQgemm), which exists for int8
activations alone. int8 Q and DQ fuse there (QDQIsInt8Allowed is true on ARM64), whereas on x86
they are rewritten to uint8 or left in float. QLinearAdd is fixed point there, so its codes are not
those of the profile for x86.
"""

from __future__ import annotations

from dataclasses import replace

from qtool.core.types import INT8
from qtool.planning.targets.onnxruntime import ONNXRUNTIME

ONNXRUNTIME_ARM = replace(
    ONNXRUNTIME,
    name="onnxruntime-arm",
    description="ONNX Runtime, CPU provider, 64-bit ARM",
    types=replace(ONNXRUNTIME.types, activation=INT8),
    saturation_limit=None,
    agreement=(),
    machines=frozenset({"onnxruntime-neon"}),
    profile="onnxruntime-neon",
)
