"""ONNX Runtime on x86-64 CPUs with VNNI: weights use all of their 8 bits.

Without VNNI (AMD Zen 1 to 3, Intel before Ice Lake) pairs of products saturate in 16 bits, and the
outputs are others; `onnxruntime` is the target for those. The runtime's own way out is the session
option `session.x64quantprecision`, which runs slower uint8 x uint8 kernels (onnxruntime:
onnxruntime_session_options_config_keys.h).
"""

from __future__ import annotations

from dataclasses import replace

from qtool.planning.targets.onnxruntime import ONNXRUNTIME

ONNXRUNTIME_X86_VNNI = replace(
    ONNXRUNTIME,
    name="onnxruntime-x86-vnni",
    description="ONNX Runtime, CPU provider, x86-64 with VNNI",
    saturation_limit=None,
    agreement=(),
    machines=frozenset(ONNXRUNTIME.agreement) - {"onnxruntime-avx2"},
)
