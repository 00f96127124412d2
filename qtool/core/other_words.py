"""Words of devices, runtimes and other tools -> the names of qtool for what they are."""

from __future__ import annotations

import re

_PI = ("onnxruntime", "tflite")
_WEB = ("onnxruntime-web", "onnxruntime-webgpu")
MEANT: dict[str, dict[str, tuple[str, ...]]] = {
    "target": {
        r"raspberry.*|r?pi\d?|jetson.*cpu": _PI,
        r"ort|onnx|onnx-?rt|cpu|x86.*|amd64|intel|server|linux|windows|desktop": ("onnxruntime",),
        r"amx|avx.*|vnni": ("onnxruntime-x86-vnni",),
        r"aarch64|arm64|graviton|apple.*|macos|m1|m2|neon": ("onnxruntime-arm", "onnxruntime"),
        r"android|mobile|phone|tf-?lite|litert|lite|xnnpack|ios|iphone|.*edge-?tpu|coral": (
            "tflite",
        ),
        r"(arm-)?cortex-?m.*|micro.*|tflm|mcu|esp-?\d*.*|stm-?\d*.*|arduino|rp\d+|pico|nrf.*"
        r"|ethos.*|nano": ("tflite-micro",),
        r"browser|web|wasm|webassembly|javascript|js|transformers\.?js|ort-?web|chrome": _WEB,
        r"webgpu": ("onnxruntime-webgpu",),
        r"gpu|cuda|nvidia|trt|jetson.*|.*tensorrt": ("tensorrt",),
        r"snapdragon|qualcomm|hexagon|snpe|htp|.*qnn": ("qnn",),
        r"openvino.+|myriad": ("openvino",),
    },
    "command": {
        r"ptq|int8|quantization|quantise|compress|export|run": ("quantize",),
        r"eval|test|accuracy|score": ("evaluate",),
        r"benchmark|latency|profile|time": ("bench",),
        r"show|info|print|summary|ls": ("inspect",),
        r"check|validate": ("verify",),
        r"diff": ("compare",),
        r"search|optimi[sz]e|auto-?tune": ("tune",),
        r"chat|complete|infer": ("generate",),
    },
    "mode": {
        r"int8|w8a8|ptq|full|full-integer|qdq": ("static",),
        r"int4|w4a16|4-?bit|q4.*|4": ("weight-only-int4",),
        r"int2|w2a16|2-?bit|2": ("weight-only-int2",),
        r"w8a16|weights?|q8.*": ("weight-only",),
    },
    "format": {r"onnx|q/dq": ("qdq",), r"qlinear|qop": ("qoperator",), r"c|cc|cpp": ("c-array",)},
    "observer": {
        r"kl|kl-.*|kld": ("entropy",),
        r"max|absmax|min-max": ("minmax",),
        r"ema": ("moving_average",),
        r"l2|sqnr": ("mse",),
    },
    "recovery step": {
        r"cle": ("cross-layer-equalization",),
        r"adaround|brecq|qdrop": ("gptq", "learned-scales"),
        r"quarot|spinquant|hadamard": ("rotation",),
    },
    "metric": {
        r"accuracy|acc|top1": ("top-1",),
        r"top5": ("top-5",),
        r"ppl": ("perplexity",),
        r"rmse|l2": ("mse",),
        r"l1": ("mae",),
    },
    "accuracy level": {r"high|max|slow|full": ("best",), r"low|quick|none": ("fast",)},
}
"""Kind of name -> words, as a regular expression for a whole one -> names that qtool has for it."""


def meant_names(what: str, word: str) -> tuple[str, ...]:
    """Return the names that a word of another tool means; () for an unknown word.

    Args:
        what: the kind of name, such as "target".
        word: what the user wrote.
    """
    plain = re.sub(r"[\s_]", "-", word.lower())
    words = MEANT.get(what, {}).items()
    return next((names for pattern, names in words if re.fullmatch(pattern, plain)), ())
