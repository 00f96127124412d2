"""ONNX Runtime in WebAssembly, as browsers run it (onnxruntime-web, 128-bit SIMD).

Integer kernels give the codes of every other CPU of `onnxruntime`; what pays is another question.
Measured in onnxruntime-web 1.30 on one thread (benchmarks/results/2026-11-webassembly.md):
depthwise convolutions and average pools take up to 2 times as long in integers, quantization around
a float one counted, and other convolutions gain only where a result has many terms, since each
result is requantized.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torch import fx

from qtool.core import graph as G
from qtool.planning.targets.base import KernelRule
from qtool.planning.targets.onnxruntime import ONNXRUNTIME

LEAST_TERMS = 48
"""Products of a result from which a convolution gains in integers."""


def _conv(node: fx.Node) -> str | None:
    """Require what the default target requires, many terms, and several channels in a group."""
    if (reason := ONNXRUNTIME.kernels["conv"].refuse(node)) is not None:
        return reason
    _, width, *kernel = map(int, G.shape(G.source(node, 1)))
    if width == 1 and G.integer(node, 6) > 1:
        return "WebAssembly's integer kernel is slower for depthwise convolutions"
    if width * prod(kernel) < LEAST_TERMS:
        return f"WebAssembly's integer kernel is slower for fewer than {LEAST_TERMS} terms a result"
    return None


ONNXRUNTIME_WEB = replace(
    ONNXRUNTIME,
    name="onnxruntime-web",
    description="ONNX Runtime in WebAssembly (browsers, node)",
    kernels={
        **{key: rule for key, rule in ONNXRUNTIME.kernels.items() if key != "average_pool"},
        "conv": KernelRule(_conv),
    },
    no_kernel={
        **ONNXRUNTIME.no_kernel,
        "average_pool": "WebAssembly's integer average pool is slower than the float one",
    },
    rewrites=tuple(name for name in ONNXRUNTIME.rewrites if name != "average_pool_as_conv"),
    file=replace(ONNXRUNTIME.file, transposed_weights=False, plain_lookups=True),
    costs=None,
    timed_in="node",
)
