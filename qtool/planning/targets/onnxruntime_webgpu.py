"""ONNX Runtime's WebGPU provider: integer weights alone, of linear layers and lookup tables.

The provider has no QuantizeLinear and no integer convolutions or products: in a QDQ file each
rounding is a copy to the CPU provider and back, between layers in float. It has MatMulNBits and
GatherBlockQuantized (onnxruntime: contrib_ops/webgpu/quantization). A Gather of int8 codes and a
Sum, which is what files for the CPU provider have in front of a layer norm, run on the CPU
provider. Run in onnxruntime-webgpu 1.27 (`qtool verify --cpu webgpu`).
"""

from __future__ import annotations

from dataclasses import replace

from qtool.core.schemes import KERNEL_BLOCKS, Scheme, When
from qtool.core.types import INT2, INT4, INT8_NARROW, UINT2, UINT4, UINT8, QType
from qtool.planning.targets import rules
from qtool.planning.targets.base import KernelRule
from qtool.planning.targets.onnxruntime import ONNXRUNTIME


def _in_blocks(*types: QType) -> tuple[Scheme, ...]:
    """Return schemes of weights in blocks, of 32 first."""
    return tuple(
        Scheme(When.NEVER, weights=t, scales=block)
        for t in types
        for block in sorted(KERNEL_BLOCKS[t.bits], key=lambda b: b != 32)
    )


ONNXRUNTIME_WEBGPU = replace(
    ONNXRUNTIME,
    name="onnxruntime-webgpu",
    description="ONNX Runtime, WebGPU provider: integer weights, activations in float",
    kernels={
        "linear": KernelRule(
            rules.constant_weights,
            float_output=True,
            schemes=_in_blocks(INT8_NARROW, UINT4, INT4, UINT8, UINT2, INT2),
        ),
        "embedding": KernelRule(schemes=_in_blocks(INT8_NARROW, INT4)),
    },
    no_kernel={
        **dict.fromkeys(rules.RECURRENT, "runs on the CPU provider, in float"),
        "experts": "QMoE refuses the weights of a routing there, and is wrong for several tokens",
    },
    weight_only={"embedding": "rows are looked up as blocks of codes and then dequantized"},
    dynamic=frozenset(),
    rewrites=("rotary",),
    file=replace(
        ONNXRUNTIME.file,
        formats=("qdq",),
        passthrough_on_codes=frozenset(),
        without_workarounds=frozenset({"skip-layer-norms"}),
    ),
    saturation_limit=None,
    agreement=(),
    costs=None,
    timed_in="webgpu",
    browser="webgpu",
)
