"""The normalisation of an image in front of the first convolution becomes a depthwise one.

Networks for devices have it inside: (x / 255 - mean) / deviation, or x * a + b. Integer runtimes
have no kernel for a factor and a summand by channel, but for a depthwise 1x1 convolution. It cannot
be folded into the first convolution, whose padding is zero behind the normalisation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.depthwise_forms import replace_by_depthwise
from qtool.passes.graph_pass import pattern_pass
from qtool.passes.rewrite_rules import commuted, is_call

aten = torch.ops.aten
_RANKS = (3, 4, 5)
_PADS = frozenset({aten.constant_pad_nd.default, torch_ops.conv, torch_ops.average_pool})

Step = tuple[Any, fx.Node, Any]
"""An operator, its computed operand, and its constant: a number or a stored tensor."""


def _step(node: fx.Node) -> Step | None:
    """Return the step of a normalisation that a call is, if it is one."""
    for target in (aten.mul.Tensor, aten.add.Tensor):
        for source, constant in commuted(node, target):
            if isinstance(source, fx.Node) and _fits(source, constant):
                return target, source, constant
    for target in (aten.div.Tensor, aten.sub.Tensor):
        if is_call(node, target):
            source, constant = node.args
            if isinstance(source, fx.Node) and _fits(source, constant):
                return target, source, constant
    return None


def _fits(source: fx.Node, constant: Any) -> bool:
    """Return whether a constant has a value for each channel of a tensor, or one for all."""
    if source.op == "get_attr" or not G.is_float(source) or G.rank(source) not in _RANKS:
        return False
    if not isinstance(G.shape(source)[1], int):
        return False
    if isinstance(constant, int | float):
        return True
    if not isinstance(constant, fx.Node) or constant.op != "get_attr" or not G.is_float(constant):
        return False
    rank = G.rank(source)
    sizes = [1] * (rank - G.rank(constant)) + list(G.shape(constant))
    return len(sizes) == rank and sizes.pop(1) in (1, G.shape(source)[1]) and set(sizes) == {1}


def _steps(last: fx.Node) -> list[Step] | None:
    """Return the steps from an input to `last`, which convolutions alone read; None: no such."""
    if _step(last) is None or any(_step(u) for u in last.users):
        return None
    if not all(user.target in _PADS for user in last.users):
        return None
    steps, node = list[Step](), last
    while (step := _step(node)) is not None and (node is last or len(node.users) == 1):
        steps.insert(0, step)
        node = step[1]
    is_input = node.op == "placeholder" or (
        node.target is aten._to_copy.default and G.source(node).op == "placeholder"
    )
    return steps if is_input else None


def _rewrite(module: fx.GraphModule, last: fx.Node, steps: list[Step]) -> None:
    channels, n = int(G.shape(last)[1]), G.rank(last) - 2
    constants = [G.tensor(module, c) if isinstance(c, fx.Node) else None for *_, c in steps]

    def fold(*stored: torch.Tensor | None) -> list[torch.Tensor]:
        gain, shift = torch.ones(channels).double(), torch.zeros(channels).double()
        for (target, _, number), tensor in zip(steps, stored, strict=True):
            value = torch.tensor(number).double() if tensor is None else tensor.double().flatten()
            if target is aten.add.Tensor:
                shift = shift + value
            elif target is aten.sub.Tensor:
                shift = shift - value
            else:
                factor = value if target is aten.mul.Tensor else 1 / value
                gain, shift = gain * factor, shift * factor
        return [gain.float().reshape(-1, 1, *[1] * n), shift.float()]

    replace_by_depthwise(module, last, steps[0][1], *G.computed(fold, *constants))


input_affine = pattern_pass(
    "input_affine",
    _steps,
    _rewrite,
    "a normalisation of the input runs in integers as a depthwise 1x1 convolution",
)
