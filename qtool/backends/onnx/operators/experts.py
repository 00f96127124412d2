"""Mixtures of experts: gathered matrices in float, ONNX Runtime's QMoE on codes."""

from __future__ import annotations

from typing import Any

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator, op
from qtool.core.graph import torch_ops
from qtool.core.ops.experts import routed_experts


def _write_linear(x: Any, weight: Any, ids: Any, experts: int) -> Any:
    sizes = op.Constant(value_ints=[experts, -1, int(weight.shape[1])])
    last = op.Constant(value_ints=[-1])
    matrices = op.Gather(op.Reshape(weight, sizes), ids)
    return op.Squeeze(op.MatMul(matrices, op.Unsqueeze(x, last)), last)


def _write_nbits(
    x: Any, packed: Any, scale: Any, zero_point: Any, ids: Any, experts: int, bits: int
) -> Any:
    """Write all experts on all rows, and choose: of a block that has one layer of a mixture."""
    outputs = int(packed.shape[0]) // experts
    attributes = tuple((name, "INT") for name in ("K", "N", "bits", "block_size"))
    product = onnx_operator("MatMulNBits", ("A", "B", "scales", "zero_points"), attributes)
    block = int(packed.shape[2]) * 8 // bits
    sizes = {"K": int(x.shape[-1]), "N": outputs, "bits": bits, "block_size": block}
    last, result = op.Constant(value_ints=[-1]), None
    for expert in range(experts):
        rows = [op.Constant(value_ints=[at * outputs]) for at in (expert, expert + 1)]
        stored = [None if t is None else op.Slice(t, *rows) for t in (packed, scale, zero_point)]
        own = product(x, *stored, **sizes)
        chosen = op.Unsqueeze(op.Equal(ids, op.Constant(value_int=expert)), last)
        result = own if result is None else op.Where(chosen, own, result)
    return result


def _write(
    x: Any,
    chosen: Any,
    shares: Any,
    up: Any,
    up_scale: Any,
    up_zero: Any,
    down: Any,
    down_scale: Any,
    down_zero: Any,
    bits: int,
) -> Any:
    """The kernel selects the experts of largest probability; those of the others are 0 here, so
    that routing of any kind is that of the model.

    No accuracy level is written: versions before 1.31, and those in browsers, refuse the attribute.
    Without it 4-bit weights are multiplied in float."""
    experts, features = int(up.shape[0]), int(x.shape[-1])
    tokens = op.Shape(x, start=0, end=1)
    sizes = op.Concat(tokens, op.Constant(value_ints=[experts]), axis=0)
    zeros = op.ConstantOfShape(sizes)
    probabilities = op.ScatterElements(zeros, chosen, shares, axis=1)
    inputs = [x, probabilities, up, up_scale, None, down, down_scale, *[None] * 4]
    inputs += [up_zero, down_zero, None, probabilities]
    options = {
        "k": int(chosen.shape[1]),
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "normalize_routing_weights": 0,
        "expert_weight_bits": bits,
        "block_size": features // int(up_scale.shape[2]),
    }
    return onnx_operator("QMoE", _INPUTS, _ATTRIBUTES)(*inputs, **options)


_INPUTS = (
    *("input", "router_probs", "fc1_experts_weights", "fc1_scales", "fc1_experts_bias"),
    *("fc2_experts_weights", "fc2_scales", "fc2_experts_bias", "fc3_experts_weights"),
    *("fc3_scales", "fc3_experts_bias", "fc1_zero_points", "fc2_zero_points"),
    *("fc3_zero_points", "router_weights"),
)

_ATTRIBUTES = (
    *(("k", "INT"), ("activation_type", "STRING"), ("swiglu_fusion", "INT")),
    *(("activation_alpha", "FLOAT"), ("activation_beta", "FLOAT"), ("block_size", "INT")),
    *(("normalize_routing_weights", "INT"), ("expert_weight_bits", "INT")),
)


WRITERS: dict[Any, Writer] = {torch_ops.expert_linear: _write_linear}


CONTRIB: dict[Any, Writer] = {routed_experts: _write, torch_ops.expert_nbits: _write_nbits}
