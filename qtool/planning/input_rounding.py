"""Inputs that a runtime's kernel rounds to 8 bits, though the file states floats.

A layer with integer weights alone runs as MatMulNBits in ONNX Runtime, and at accuracy level 4 that
kernel rounds each row of its input to int8, one scale for each block of the row (MLAS,
`SQNBitGemm_CompInt8`); OpenVINO does the same (targets/input_blocks.py). An LSTM in mode "dynamic"
rounds its input and its state to uint8. The file is checked without that rounding; what a user gets
contains it, and with 8-bit weights it is the larger error. So the simulation that estimates and
judges has it too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.ops import recurrent
from qtool.core.types import Observed
from qtool.planning.fake_quantize import insert_module
from qtool.planning.node_decisions import operator_key
from qtool.planning.plan import Execution, Kind, QuantPlan
from qtool.planning.targets import target

LIMIT = 127  # codes are symmetric
_ROUNDING = ("linear", "experts")  # operators whose kernels read codes of weights


class Rounding(nn.Module):
    """What the kernel of a layer rounds inside: a point like those of the plan, on or off.

    Attributes:
        layer: name of the layer.
        point: name of the point.
    """

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer, self.point = layer, value_names.rounded_input(layer)


class RoundedInput(Rounding):
    """A layer's input, rounded to int8 in blocks of its last axis."""

    def __init__(self, layer: str, block: int) -> None:
        super().__init__(layer)
        self.block = block

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


class RoundedLstm(Rounding):
    """The results of an LSTM that rounds its input and its state, in place of those in float."""

    def forward(self, _: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the results for the arguments of the float LSTM, which follow its results."""
        return recurrent.rounded_lstm(*args)


def insert_input_rounding(module: fx.GraphModule, plan: QuantPlan) -> None:
    """Round what the kernels round inside, in place; the input of several layers once.

    Args:
        module: graph with the points of the plan.
        plan: plan of the module.
    """
    rounded: dict[tuple[fx.Node, int], fx.Node] = {}
    for node, block in _rounding_layers(module, plan).items():
        source = G.source(node)
        if (source, block) not in rounded:
            point = RoundedInput(G.name_of(node), block)
            rounded[source, block] = _insert(module, point, source)
        node.replace_input_with(source, rounded[source, block])
    for node in list(G.calls(module.graph)):
        if node.target is recurrent.lstm and _execution(plan, node) is Execution.DYNAMIC:
            call = _insert(module, RoundedLstm(G.name_of(node)), node, *node.args)
            for user in [u for u in node.users if u is not call]:
                user.replace_input_with(node, call)
    if hasattr(module, "rounded_inputs"):
        module.graph.lint()
        module.recompile()


def _execution(plan: QuantPlan, node: fx.Node) -> Execution | None:
    decision = plan.decision(G.name_of(node))
    return None if decision is None else decision.execution


def _rounding_layers(module: fx.GraphModule, plan: QuantPlan) -> dict[fx.Node, int]:
    """Return the layers with integer weights alone that round their input, and in which blocks."""
    specs = {
        edge.user: point.spec
        for point in plan
        if point.kind is Kind.WEIGHT and isinstance(point.spec, Observed)
        for edge in point.edges
    }
    layers: dict[fx.Node, int] = {}
    for node in G.calls(module.graph):
        name = G.name_of(node)
        weights_only = name in specs and _execution(plan, node) is Execution.WEIGHTS
        if operator_key(node) in _ROUNDING and weights_only:
            block = target(plan.target).input_block(node, specs[name])
            if block is not None:
                layers[node] = block
    return layers


def _insert(module: fx.GraphModule, point: Rounding, source: fx.Node, *args: Any) -> fx.Node:
    """Insert a call of a point on a node and further arguments behind that node."""
    place = module.graph.inserting_after(source)
    return insert_module(module, "rounded_inputs", point.point, point, (source, *args), place)
