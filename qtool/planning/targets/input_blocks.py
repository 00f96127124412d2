"""Blocks in which kernels of layers with integer weights alone round their input to int8.

A rule for each runtime: call and type of the weight -> length of the blocks along the last axis of
the input, None where the kernel computes in float. Calls are those of the graph with quant points.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.graph.cut import LATER_READS
from qtool.core.ops import Role, row_of
from qtool.core.schemes import channel_block
from qtool.core.types import INT8, INT8_NARROW, Observed

aten = torch.ops.aten

BLOCK = 32
"""Length of the blocks of weights with one scale per channel: of 8 bits in ONNX Runtime, of any
type in OpenVINO."""

_TURNS = (aten.permute.default, aten.transpose.int)


def onnxruntime(layer: fx.Node, weight: Observed) -> int | None:
    """Return the block of MatMulNBits.

    The file states that operator for weights in blocks and of fewer than 8 bits. Others stand
    behind a DequantizeLinear, from which the runtime makes one on its own conditions
    (`DQMatMulNodeGroupSelector` and `NodeGroupSelector` in its qdq_selectors.cc).
    """
    if layer.target is torch_ops.expert_linear:  # QMoE
        return weight.block if weight.qtype.bits == 8 else None
    if weight.block is not None:
        return weight.block
    if weight.qtype not in (INT8, INT8_NARROW):
        return channel_block(int(G.shape(G.source(layer))[-1]), weight.qtype.bits)
    fusions = (_is_next_to_codes, _is_shared, _is_clamped, _is_turned, _is_added)
    return None if any(fits(layer) for fits in fusions) else BLOCK


def openvino(layer: fx.Node, weight: Observed) -> int | None:
    """Return the block of a FullyConnected with compressed weights, on x86-64 with VNNI.

    Measured on 2026.4: one output, or less inputs than a block, are computed in float.
    """
    outputs, inputs = map(int, G.shape(G.source(layer, 1)))
    return None if _has_parameters(G.source(layer)) or outputs == 1 or inputs < BLOCK else BLOCK


def _is_point(node: fx.Node) -> bool:
    return node.op == "call_module"


def _has_parameters(node: fx.Node) -> bool:
    """Return whether a node is a point with stored parameters, not one of its batch."""
    module = node.graph.owning_module
    assert module is not None
    return hasattr(G.submodule(module, node), "scale")


def _is_next_to_codes(layer: fx.Node) -> bool:
    """Return whether a layer reads codes, or codes are made of its result: another fusion."""
    return any(_has_parameters(n) for n in (G.source(layer), *layer.users))


def _is_shared(layer: fx.Node) -> bool:
    """Return whether another call reads the codes of the weight."""
    stored = G.source(layer, 1)
    tensor = G.source(stored) if _is_point(stored) else stored
    reads = [n for n in tensor.graph.nodes if n.op == "get_attr" and n.target == tensor.target]
    calls = [u for n in reads for u in n.users]
    return sum(len(u.users) if _is_point(u) else 1 for u in calls) > 1


def _is_clamped(layer: fx.Node) -> bool:
    """Return whether a clamp with one reader is all that reads a layer; the runtime takes it for
    one that a quantization behind it may imply. The reader may be in a later block."""
    clamp = next(iter(layer.users), layer)
    row = row_of(clamp)
    is_only = len(layer.users) == 1 and row is not None and row.role is Role.CLIP
    calls, later = [u for u in clamp.users if u.op != "output"], clamp.meta.get(LATER_READS)
    reads = sum(a is clamp for user in calls for a in pytree.tree_leaves(user.args))
    is_output = len(calls) < len(clamp.users) and later is None
    return is_only and reads + (later or 0) == 1 and not is_output


def _is_turned(layer: fx.Node) -> bool:
    """Return whether the runtime fuses a transpose in front of a layer (Gemm) into it."""
    before = G.source(layer)
    return _has_bias(layer) and before.target in _TURNS and len(before.users) == 1


def _is_added(layer: fx.Node) -> bool:
    """Return whether an add becomes the bias of a layer (MatMul) that has none."""
    add = next(iter(layer.users), layer)
    if _has_bias(layer) or len(layer.users) != 1 or add.target is not aten.add.Tensor:
        return False
    others = [a for a in add.args if isinstance(a, fx.Node) and a is not layer]
    return all(G.rank(other) in (1, 2) for other in others) and len(others) == 1


def _has_bias(layer: fx.Node) -> bool:
    return G.argument(layer, 2, "bias") is not None
