"""The numerics profiles, in words: whose integer arithmetic is reproduced."""

from __future__ import annotations

from collections.abc import Mapping

_RUNTIME = "ONNX Runtime on"

PROFILE_TITLES: Mapping[str, str] = {
    "tflite": "reference kernels of LiteRT",
    "tflite-2": "reference kernels of newer LiteRT",
    "tflite-micro": "reference kernels of TensorFlow Lite Micro",
    "tflite-optimized": "optimized kernels of LiteRT on x86-64",
    "xnnpack": "LiteRT with XNNPACK",
    "onnxruntime-x64": f"{_RUNTIME} x86-64 with VNNI",
    "onnxruntime-avx2": f"{_RUNTIME} x86-64 without VNNI (AVX2)",
    "onnxruntime-sse41": f"{_RUNTIME} x86-64 without AVX2 (SSE4.1)",
    "onnxruntime-neon": f"{_RUNTIME} 64-bit ARM",
    "onnxruntime-wasm": f"{_RUNTIME} WebAssembly",
}
"""Name of a profile -> the runtime and the processors."""


def describe_profile(name: str) -> str:
    """Return a name with its words."""
    return f"{name} ({PROFILE_TITLES[name]})"
