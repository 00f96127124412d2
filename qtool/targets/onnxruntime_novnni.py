"""ONNX Runtime on x86-64 CPUs without VNNI: products of codes are added in 16 bits that saturate.

The file is that of `onnxruntime-x86` but for the weights: where two weights of an output channel
could saturate a pair sum, the channel's scale is widened until they cannot (see saturation.py). The
codes are then the same on every x86 CPU. The runtime's own way out is the session option
`session.x64quantprecision`, which runs slower uint8 x uint8 kernels (onnxruntime:
onnxruntime_session_options_config_keys.h).
"""

from __future__ import annotations

from dataclasses import replace

from qtool.targets.onnxruntime_x86 import ONNXRUNTIME_X86
from qtool.targets.saturation import pair_limit

__all__ = ["ONNXRUNTIME_X86_NOVNNI"]

ONNXRUNTIME_X86_NOVNNI = replace(
    ONNXRUNTIME_X86,
    name="onnxruntime-x86-novnni",
    description="ONNX Runtime, CPU provider, x86-64 without VNNI (SSE4.1, AVX2, AVX512 core)",
    pair_limit=pair_limit(ONNXRUNTIME_X86.types.activation),
)
