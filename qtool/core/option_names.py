"""Names of targets, observers, modes, ... for checks that run before torch is loaded.

The registries that give the names their meaning load torch. `tests/core/test_names.py`
compares them with the tables below.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

TARGETS = (
    "onnxruntime",
    "onnxruntime-x86-vnni",
    "onnxruntime-arm",
    "onnxruntime-web",
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
FORMATS: dict[str, tuple[str, ...]] = {
    "qdq": MODEL_SUFFIXES,
    "qoperator": MODEL_SUFFIXES,
    "tflite": (TFLITE_SUFFIX,),
}
"""Format -> the suffixes of its files, the usual one first; `add_format` adds one."""
MODEL_FORMATS: dict[str, str] = {MODEL_SUFFIXES[0]: "qdq", TFLITE_SUFFIX: "tflite"}
"""Suffix of files that can be read -> the format that is written by default."""
NATIVE = "onnxruntime"
RUNTIMES = (NATIVE, "node")
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
    *("output-equalization", "sensitive-layers", "cross-layer-equalization", "smooth-quant"),
    *("gptq", "bias-correction", "learned-scales"),
)
CHOICES = (
    *("static", "static-16", "dynamic", "int8-weights", "int4-weights", "int2-weights"),
    "float",
)

_SIMILAR = 0.6  # of 1, for a suggestion

_ORT = "ONNX Runtime on"

PROFILE_TITLES: Mapping[str, str] = {
    "tflite": "reference kernels of LiteRT",
    "tflite-2": "reference kernels of newer LiteRT",
    "tflite-micro": "reference kernels of TensorFlow Lite Micro",
    "tflite-optimized": "optimized kernels of LiteRT on x86-64",
    "xnnpack": "LiteRT with XNNPACK",
    "onnxruntime-x64": f"{_ORT} x86-64 with VNNI",
    "onnxruntime-avx2": f"{_ORT} x86-64 without VNNI (AVX2)",
    "onnxruntime-sse41": f"{_ORT} x86-64 without AVX2 (SSE4.1)",
    "onnxruntime-neon": f"{_ORT} 64-bit ARM",
    "onnxruntime-wasm": f"{_ORT} WebAssembly",
}
"""Name of a profile -> the runtime and the processors."""


def describe_profile(name: str) -> str:
    """Return a name with its words."""
    return f"{name} ({PROFILE_TITLES[name]})"


def file_format(path: str | Path, requested: str) -> str:
    """Return the format of a file to write: "qdq", the default, is that of the file's suffix, such
    as "tflite" for .tflite."""
    own = MODEL_FORMATS.get(Path(path).suffix.lower(), "qdq")
    return own if requested == "qdq" else requested


def suffixes_of(requested: str) -> tuple[str, ...]:
    """Return the suffixes that a file may have when a format is requested."""
    return tuple(MODEL_FORMATS) if requested == "qdq" else FORMATS.get(requested, MODEL_SUFFIXES)


def add_format(names: Sequence[str], suffix: str) -> None:
    """Add the formats of a kind of files; the first is the default for files with the suffix."""
    FORMATS.update(dict.fromkeys(names, (suffix,)))
    MODEL_FORMATS[suffix] = names[0]


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """Return a sentence that refuses a name, with the most similar one and all of them.

    Args:
        what: the kind of name, such as "target".
        name: the unknown name.
        known: the known names.
    """
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=_SIMILAR)
    meant = f"did you mean '{close[0]}'? There" if close else "there"
    return f"unknown {what} '{name}'; {meant} are: {', '.join(names)}"
