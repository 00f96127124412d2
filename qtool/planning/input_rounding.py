"""Inputs that a runtime's kernel rounds to int8, though the file states a product of floats.

A layer with integer weights alone runs as MatMulNBits in ONNX Runtime, and at accuracy level 4 that
kernel rounds each row of its input to int8, one scale for each block of the row (MLAS,
`SQNBitGemm_CompInt8`). The file is checked without that rounding; what a user gets contains it, and
with 8-bit weights it is the larger error. So the simulation that estimates and judges has it too.
"""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.ops import row_of
from qtool.core.schemes import channel_block
from qtool.core.types import INT8, INT8_NARROW, Observed
from qtool.planning.plan import Execution, Kind, QuantPlan
from qtool.planning.targets import target

FUSED_BLOCK = 32
"""Length of the blocks of a layer with 8-bit weights of one scale per channel, which the runtime
itself turns into MatMulNBits."""

LIMIT = 127  # codes are symmetric


class RoundedInput(nn.Module):
    """A layer's input, rounded to int8 in blocks of its last axis."""

    def __init__(self, layer: str, block: int) -> None:
        super().__init__()
        self.point, self.block = value_names.rounded_input(layer), block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Round floats [..., features]; the gradient is that of the identity."""
        features = x.shape[-1]
        blocks = F.pad(x.detach(), (0, -features % self.block)).unflatten(-1, (-1, self.block))
        scale = blocks.abs().amax(-1, keepdim=True) / LIMIT
        rounded = (blocks / scale.clamp(min=torch.finfo(x.dtype).tiny)).round_().mul_(scale)
        rounded = rounded.flatten(-2)[..., :features]
        straight: torch.Tensor = x + (rounded - x.detach()) if x.requires_grad else rounded
        return straight

    def extra_repr(self) -> str:
        return f"{self.point}, blocks of {self.block}"


def insert_input_rounding(module: fx.GraphModule, plan: QuantPlan) -> None:
    """Round what the kernels of weight-only layers round, in place; once for layers that share it.

    Args:
        module: with the points of the plan.
        plan: of the module.
    """
    if not target(plan.target).rounds_inputs:
        return
    weights_only = {d.node for d in plan.nodes if d.execution is Execution.WEIGHTS}
    specs = {
        edge.user: point.spec
        for point in plan
        if point.kind is Kind.WEIGHT and isinstance(point.spec, Observed)
        for edge in point.edges
    }
    rounded: dict[tuple[fx.Node, int], fx.Node] = {}
    for node in list(G.calls(module.graph)):
        name, row = G.name_of(node), row_of(node)
        if row is None or not row.supported_modes or name not in weights_only & specs.keys():
            continue
        source = node.args[0]
        assert isinstance(source, fx.Node)
        key = source, _block(specs[name], int(G.shape(source)[-1]))
        if key not in rounded:
            rounded[key] = _insert(module, node, *key)
        node.replace_input_with(source, rounded[key])
    if rounded:
        module.graph.lint()
        module.recompile()


def _block(weight: Observed, features: int) -> int:
    """Return the length of the blocks in which the kernel of a layer rounds its input."""
    if weight.block is not None:
        return weight.block
    fused = weight.qtype in (INT8, INT8_NARROW)
    return FUSED_BLOCK if fused else channel_block(features, weight.qtype.bits)


def _insert(module: fx.GraphModule, layer: fx.Node, source: fx.Node, block: int) -> fx.Node:
    point = RoundedInput(G.name_of(layer), block)
    parent = getattr(module, "rounded_inputs", nn.Module())
    path = f"rounded_inputs.{G.free_name(parent, point.point)}"
    module.add_submodule(path, point)
    with module.graph.inserting_after(source):
        call = module.graph.call_module(path, (source,))
    call.meta[G.NAME], call.meta["val"] = point.point, G.value(source)
    return call
