"""ONNX Runtime on any CPU: one file whose integer kernels give the same codes everywhere.

uint8 activations with int8 weights are the only pair that is fast on x86; scales and zero points of
activations have to be scalars, weights symmetric. Two things keep codes equal on x86 with and
without VNNI, on ARM and in WebAssembly: no pair of weights can saturate 16 bits (saturation.py),
and with the chosen scales the formulas of all kernels agree (calibration/portable_scales.py). What
the CPU provider fuses into integer kernels was measured on ONNX Runtime 1.31.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from qtool.core import graph as G
from qtool.core.schemes import KERNEL_BLOCKS, Scales, Scheme, When
from qtool.core.types import INT2, INT4, INT8, INT8_NARROW, UINT2, UINT4, UINT8
from qtool.core.versions import version_of
from qtool.planning.speed.costs import CostTable
from qtool.planning.targets import input_blocks, rules
from qtool.planning.targets.base import (
    INTEGER_SCHEMES,
    WEIGHT_ONLY_SCHEMES,
    FileForm,
    KernelRule,
    Target,
    Types,
)
from qtool.planning.targets.saturation import saturation_limit

_SCALES: dict[int, tuple[Scales | int, ...]] = {
    bits: (32, *(b for b in blocks if b != 32), Scales.CHANNEL)
    for bits, blocks in KERNEL_BLOCKS.items()
}
"""Bits of the weights -> which of them share a scale in MatMulNBits, the default first."""

_LINEAR = (
    *INTEGER_SCHEMES,
    *(Scheme(When.DYNAMIC, weights=t) for t in (None, INT4)),
    *WEIGHT_ONLY_SCHEMES,
    *(
        Scheme(When.NEVER, weights=t, scales=scales)  # MatMulNBits
        for t in (INT8_NARROW, UINT4, INT4, UINT8, UINT2, INT2)
        for scales in _SCALES[t.bits]
    ),
)

_EXPERTS = tuple(
    Scheme(When.NEVER, weights=t, scales=scales)  # QMoE
    for t in (INT8_NARROW, UINT4, INT4, UINT8)
    for scales in _SCALES[t.bits]
    if isinstance(scales, int)
)

_X64_VNNI = CostTable(
    measured="onnxruntime 1.31.1, AMD EPYC with AVX-512 VNNI, November 2026",
    in_float={
        "call": 514,
        "depthwise result": 0.0761,
        "depthwise tap": 0.00904,
        "image mac": 0.00793,
        "input": 0.0108,
        "mac": 0.00828,
        "narrow mac": 0.00606,
        "narrow term": 0.222,
        "result": 0.0183,
    },
    in_integers={
        "call": 829,
        "depthwise pixel": 0.539,
        "depthwise rest": 2.18,
        "depthwise result": 0.0501,
        "depthwise tap": 0.0122,
        "mac": 0.00202,
        "narrow pixel": 5.41,
        "narrow term": 0.0562,
        "pixel": 0.234,
        "result": 0.0349,
        "tap": 0.76,
    },
    elementwise={
        "add": (0.08, 0.09),
        "mul": (0.08, 0.18),
        "sigmoid": (0.23, 0.24),
    },
    call=500,
    boundary=400,
    boundary_element=0.07,
)


def _conv(node: fx.Node) -> str | None:
    """Require constant weights, and no 3-d convolution with few channels and overlapping windows.

    Measured: 3 channels take 1.3 to 4 times the float kernel's time, 1 channel up to 60 times,
    narrow groups 20 times; depthwise ones are fast.
    """
    if (reason := rules.constant_weights(node)) is not None or G.rank(node) != 5:
        return reason
    width, *kernel = map(int, G.shape(G.source(node, 1))[1:])
    patches = all(s >= size for s, size in zip(G.integers(node, 3), kernel, strict=True))
    few = width <= 3 if G.integer(node, 6) == 1 else 1 < width < 8
    slow = few and not patches
    return "the integer kernel is slower for 3-d convolutions with few channels" if slow else None


def _experts(node: fx.Node) -> str | None:
    """Require a version with the kernel: QMoE with zero points and with weights of its results."""
    installed = version_of("onnxruntime")
    known = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if known and known < _QMOE_SINCE:
        return f"ONNX Runtime {installed} has no kernel for it; 1.26 has"
    return None


_QMOE_SINCE = (1, 26)
"""The oldest version that it was run on (benchmarks/results/2026-11-mixtures.md)."""

ONNXRUNTIME = Target(
    name="onnxruntime",
    description="ONNX Runtime, CPU provider, the same codes on x86-64, ARM and WebAssembly",
    types=Types(UINT8),
    kernels={
        "conv": KernelRule(_conv),
        "linear": KernelRule(
            rules.constant_weights, float_output=True, single_dtype_output=True, schemes=_LINEAR
        ),
        "experts": KernelRule(_experts, schemes=_EXPERTS),
        "add": KernelRule(rules.tensors_only, opportunistic=True),
        "mul": KernelRule(rules.tensors_only, opportunistic=True),
        "concat": KernelRule(rules.float32, opportunistic=True),
        "sigmoid": KernelRule(rules.float32, opportunistic=True),
        "leaky_relu": KernelRule(rules.float32, opportunistic=True),
        "silu": KernelRule(rules.float32, opportunistic=True, float_between_qdq=True),
        "gelu": KernelRule(rules.float32, opportunistic=True, float_between_qdq=True),
        "hard_swish": KernelRule(rules.float32, opportunistic=True, float_between_qdq=True),
        "hard_sigmoid": KernelRule(rules.float32, opportunistic=True, float_between_qdq=True),
        "tanh": KernelRule(rules.float32, opportunistic=True, float_between_qdq=True),
        "elu": KernelRule(rules.float32, opportunistic=True, float_between_qdq=True),
        "prelu": KernelRule(rules.float32, opportunistic=True, float_between_qdq=True),
        "global_average_pool": KernelRule(rules.float32, opportunistic=True),
        "average_pool": KernelRule(rules.average_pool, opportunistic=True),
        # (on codes of a float tensor, it runs in the layout of floats, ten times slower)
        "max_pool": KernelRule(rules.float32, opportunistic=True),
        "pad": KernelRule(rules.zero_fill),
        "rescale": KernelRule(rules.float32),
        **dict.fromkeys(rules.EXTREMES, KernelRule(rules.float32)),
        "pass": KernelRule(rules.float32_data),
    },
    no_kernel={
        **dict.fromkeys(rules.PRODUCTS, "a product of two activations is not faster in integers"),
        "softmax": "ONNX Runtime's integer softmax is slower than the float one",
    },
    weight_only={
        # (left in float between DQ and Q, the runtime would round its weights itself, per tensor)
        "conv_transpose": "ONNX Runtime has no integer ConvTranspose kernel",
        "embedding": "rows are looked up as codes and then dequantized",
        "experts": "each token selects its experts at run time",
        **dict.fromkeys(rules.RECURRENT, "ONNX Runtime has no integer kernel for it in QDQ files"),
    },
    dynamic=frozenset({"lstm"}),
    input_block=input_blocks.onnxruntime,
    rewrites=(
        "batch_norm_as_conv",
        "average_pool_as_conv",
        "channel_shuffle",
        "experts",
        "hard_swish",
        "merge_groups",
        "pad_channels",
        "rotary",
        "stacked_weights",
    ),
    implicit_fusions=frozenset(
        [
            *("conv", "linear", "add", "mul", "concat", "sigmoid", "leaky_relu", "softmax"),
            *("average_pool", "global_average_pool"),
        ]
    ),
    file=FileForm(
        formats=("qdq", "qoperator"),
        contrib=True,
        dequantizes_once=True,
        fusions=(
            *("rotary", "rotary_attention", "routed_experts"),
            *("packed_projections", "skip_rms_norm", "hard_swish_forms", "prelu_forms"),
            "unpad_channels",
        ),
        passthrough_on_codes=frozenset({"pad", "rescale"}),
    ),
    saturation_limit=saturation_limit(UINT8),
    agreement=tuple(f"onnxruntime-{cpu}" for cpu in ("x64", "avx2", "sse41", "neon", "wasm")),
    profile="onnxruntime-x64",
    runtime="onnxruntime",
    costs=_X64_VNNI,
)

ONNXRUNTIME_ARM = replace(
    ONNXRUNTIME,
    name="onnxruntime-arm",
    description="ONNX Runtime, CPU provider, 64-bit ARM",
    types=replace(ONNXRUNTIME.types, activation=INT8),
    saturation_limit=None,
    agreement=(),
    machines=frozenset({"onnxruntime-neon"}),
    costs=None,
    profile="onnxruntime-neon",
)
"""64-bit ARM: int8 activations. Kernels (mlas/lib/platform.cpp) take int8 x int8 on every path:
matrix products with sdot or smmla, symmetric convolutions, and the packed symmetric product
(SymmQgemm), which exists for int8 activations alone. int8 Q and DQ fuse there (QDQIsInt8Allowed is
true on ARM64), whereas on x86 they are rewritten to uint8 or left in float. QLinearAdd is fixed
point there, so its codes are not those of the profile for x86."""

ONNXRUNTIME_X86_VNNI = replace(
    ONNXRUNTIME,
    name="onnxruntime-x86-vnni",
    description="ONNX Runtime, CPU provider, x86-64 with VNNI",
    saturation_limit=None,
    agreement=(),
    machines=frozenset(ONNXRUNTIME.agreement) - {"onnxruntime-avx2"},
)
"""x86-64 with VNNI: weights use all of their 8 bits. Without VNNI (AMD Zen 1 to 3, Intel before Ice
Lake) pairs of products saturate in 16 bits, and the outputs are others. The runtime's own way out
is the session option `session.x64quantprecision`, which runs slower uint8 x uint8 kernels
(onnxruntime: onnxruntime_session_options_config_keys.h)."""
