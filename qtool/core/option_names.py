"""Names of targets, observers, modes, ... for checks that run before torch is loaded.

The registries that give the names their meaning load torch. `tests/core/test_names.py`
compares them with the tables below.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

TARGETS = (
    "onnxruntime",
    "onnxruntime-x86-vnni",
    "onnxruntime-arm",
    "onnxruntime-web",
    "onnxruntime-webgpu",
    "openvino",
    "tensorrt",
    "tflite",
    "tflite-micro",
    "qnn",
)
TARGET_MACHINES: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("openvino", "tensorrt", "tflite", "tflite-micro", "qnn")),
    "onnxruntime-x86-vnni": (
        *("onnxruntime-neon", "onnxruntime-sse41", "onnxruntime-wasm", "onnxruntime-x64"),
    ),
    "onnxruntime-arm": ("onnxruntime-neon",),
}
"""Target of files that ONNX Runtime does not run, None, or not on every machine -> the profiles of
those on which it has the kernels."""
MODEL_SUFFIXES = (".onnx",)
"""Suffixes of ONNX files, the usual one first."""
TFLITE_SUFFIX = ".tflite"
C_SOURCE = "c-array"
"""Format of a TFLite file as an array in C."""
C_SUFFIXES = (".cc", ".cpp", ".c")
FORMATS: dict[str, tuple[str, ...]] = {
    "qdq": MODEL_SUFFIXES,
    "qoperator": MODEL_SUFFIXES,
    "tflite": (TFLITE_SUFFIX,),
    C_SOURCE: C_SUFFIXES,
}
"""Format -> the suffixes of its files, the usual one first; `add_format` adds one."""
MODEL_FORMATS: dict[str, str] = {MODEL_SUFFIXES[0]: "qdq", TFLITE_SUFFIX: "tflite"}
"""Suffix of files that can be read -> the format that is written by default."""
NATIVE = "onnxruntime"
RUNTIMES = (NATIVE, "node", "webgpu")
"""Where files are run to be timed and evaluated: NATIVE is this machine's runtime of the format."""
OBSERVERS = ("minmax", "moving_average", "percentile", "mse", "entropy", "gaussian", "laplace")
DEFAULT_OBSERVER = "percentile"
IMAGE_LAYOUTS = ("nhwc", "nchw")
FOLDER_LAYOUTS = ("shared", "genai", "optimum", "transformers.js", "sentence-transformers")
Mode = Literal["static", "dynamic", "weight-only", "weight-only-int4", "weight-only-int2"]
MODES: tuple[Mode, ...] = get_args(Mode)
Accuracy = Literal["fast", "balanced", "best"]
ACCURACIES: tuple[Accuracy, ...] = get_args(Accuracy)
STEPS = (
    *("rotation", "output-equalization", "sensitive-layers", "cross-layer-equalization"),
    *("smooth-quant", "gptq", "bias-correction", "weight-scale-search"),
    *("batch-norm-reestimation", "learned-scales"),
)
CHOICES = (
    *("static", "static-16", "dynamic", "int8-weights", "int4-weights", "int2-weights"),
    "float",
)

_SIMILAR = 0.6  # of 1, for a suggestion

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


def file_format(path: str | Path, requested: str) -> str:
    """Return the format of a file to write: "qdq", the default, is that of the file's suffix, such
    as "tflite" for .tflite and "c-array" for .cc."""
    written = MODEL_FORMATS | dict.fromkeys(C_SUFFIXES, C_SOURCE)
    return written.get(Path(path).suffix.lower(), "qdq") if requested == "qdq" else requested


def suffixes_of(requested: str) -> tuple[str, ...]:
    """Return the suffixes that a file may have when a format is requested."""
    return tuple(MODEL_FORMATS) if requested == "qdq" else FORMATS.get(requested, MODEL_SUFFIXES)


def add_format(names: Sequence[str], suffix: str) -> None:
    """Add the formats of a kind of files; the first is the default for files with the suffix."""
    FORMATS.update(dict.fromkeys(names, (suffix,)))
    MODEL_FORMATS[suffix] = names[0]


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """Return a sentence that refuses a name, with those that are meant by it and all of them.

    Args:
        what: the kind of name, such as "target".
        name: the unknown name.
        known: the known names.
    """
    names = list(known)
    listed = ", ".join(names)
    meant = [each for each in meant_names(what, str(name)) if each in names]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=_SIMILAR)
    parts = [each for each in names if len(str(name)) > 2 and str(name).lower() in each.split("-")]
    close = close or (parts if len(parts) == 1 else [])
    if meant := meant or close:
        either = " or ".join(f"'{each}'" for each in meant)
        return f"unknown {what} '{name}'; did you mean {either}? There are: {listed}"
    return f"unknown {what} '{name}'; there are: {listed}"


def meant_names(what: str, word: str) -> tuple[str, ...]:
    """Return the names that a word of another tool means; () for an unknown word.

    Args:
        what: the kind of name, such as "target".
        word: what the user wrote.
    """
    plain = re.sub(r"[\s_]", "-", word.lower())
    words = MEANT.get(what, {}).items()
    return next((names for pattern, names in words if re.fullmatch(pattern, plain)), ())
