"""A stored factor or summand per channel behind a layer becomes part of its weight and bias.

Examples are a written-out norm with frozen statistics, a layer scale, a separate bias. One kernel
replaces three, the factor is rounded with the weight of its channel, and an activation behind it
can be fused with the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.conv_channels import replace_by_depthwise
from qtool.passes.fold_batch_norm import fold_statistics, layout
from qtool.passes.graph_pass import GraphPass, first_match, pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as, commuted, is_call

aten = torch.ops.aten
_CHANNELS: Mapping[Any, int] = {
    torch_ops.conv: 1,
    torch_ops.conv_transpose: 1,
    aten.linear.default: -1,
}
_ANY_ORDER = (aten.mul.Tensor, aten.add.Tensor)
_RANKS = (3, 4, 5)
_PADS = frozenset({aten.constant_pad_nd.default, torch_ops.conv, torch_ops.average_pool})

Step = tuple[Any, fx.Node, Any]
"""An operator, its computed operand, and its constant: a number or a stored tensor."""


def _match(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return a layer, and the stored tensor that its result is combined with."""
    if node.target not in (*_ANY_ORDER, aten.sub.Tensor) or node.kwargs.get("alpha", 1) != 1:
        return None
    orders = [node.args, node.args[::-1]] if node.target in _ANY_ORDER else [node.args]
    for layer, vector in orders:
        if isinstance(layer, fx.Node) and isinstance(vector, fx.Node) and _fits(layer, vector):
            return layer, vector
    return None


def _fits(layer: fx.Node, vector: fx.Node) -> bool:
    """Return whether the vector has a value per channel, or one for all, and all is stored."""
    if layer.target not in _CHANNELS or vector.op != "get_attr" or len(layer.users) != 1:
        return False
    constants: list[Any] = [layer.args[1], G.argument(layer, 2, "bias")]
    if any(n is not None and n.op != "get_attr" for n in constants):
        return False
    rank, axis = G.rank(layer), _CHANNELS[layer.target]
    if G.rank(vector) > rank or G.value(vector).dtype != G.value(layer).dtype:
        return False
    padded: list[Any] = [1] * (rank - G.rank(vector)) + list(G.shape(vector))
    size = padded.pop(axis)
    return size in (1, int(G.shape(layer)[axis])) and all(s == 1 for s in padded)


def _rewrite(module: fx.GraphModule) -> int:
    folded: dict[tuple[Any, ...], tuple[fx.Node, fx.Node | None]] = {}
    count = 0
    for node in G.calls(module.graph):  # in order: a factor, and then a summand
        affine = _match(node)
        if affine is None:
            continue
        layer, vector = affine
        bias = G.argument(layer, 2, "bias")
        key = (node.target, vector.target, layer.args[1], bias, layout(layer))
        if key not in folded:
            folded[key] = _folded(module, node, layer, vector)
        args = (layer.args[0], *folded[key], *layer.args[3:])
        G.replace(node, clone_as(layer, layer.target, args))
        module.graph.erase_node(layer)
        count += 1
    return count


def _folded(
    module: fx.GraphModule, node: fx.Node, layer: fx.Node, stored: fx.Node
) -> tuple[fx.Node, fx.Node | None]:
    weight_node, bias_node = G.source(layer, 1), G.argument(layer, 2, "bias")
    bias = None if bias_node is None else G.tensor(module, bias_node)
    channels = int(G.shape(layer)[_CHANNELS[layer.target]])
    scales, subtracted = node.target is aten.mul.Tensor, node.target is aten.sub.Tensor

    def fold(weight: torch.Tensor, bias: torch.Tensor | None, vector: torch.Tensor) -> Any:
        vector = vector.double().reshape(-1).expand(channels)
        zeros, ones = torch.zeros_like(vector), torch.ones_like(vector)
        gain, shift = (vector, None) if scales else (None, -vector if subtracted else vector)
        return fold_statistics(weight, bias, gain, shift, zeros, ones, 0.0, layout(layer))

    tensors = G.tensor(module, weight_node), bias, G.tensor(module, stored)
    scaled, shifted = G.computed(fold, *tensors)
    name = G.name_of(layer)
    if not scales:
        (new_bias,) = add_parameters(module, name, bias=shifted)
        return weight_node, new_bias
    if bias is None:
        (new_weight,) = add_parameters(module, name, weight=scaled)
        return new_weight, None
    new_weight, new_bias = add_parameters(module, name, weight=scaled, bias=shifted)
    return new_weight, new_bias


fold_affine = GraphPass("fold_affine", _rewrite, first_match(_match))


# The normalisation of an image in front of the first convolution becomes a depthwise one.
#
# Networks for devices have it inside: (x / 255 - mean) / deviation, or x * a + b. Integer runtimes
# have no kernel for a factor and a summand by channel, but for a depthwise 1x1 convolution. It
# cannot be folded into the first convolution, whose padding is zero behind the normalisation.


def _step(node: fx.Node) -> Step | None:
    """Return the step of a normalisation that a call is, if it is one."""
    orders = [*commuted(node, aten.mul.Tensor), *commuted(node, aten.add.Tensor)]
    if is_call(node, aten.div.Tensor) or is_call(node, aten.sub.Tensor):
        orders = [(node.args[0], node.args[1])]
    for source, constant in orders:
        if isinstance(source, fx.Node) and _fits_input(source, constant):
            return node.target, source, constant
    return None


def _fits_input(source: fx.Node, constant: Any) -> bool:
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


def _fold_input(module: fx.GraphModule, last: fx.Node, steps: list[Step]) -> None:
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
    _fold_input,
    "a normalisation of the input runs in integers as a depthwise 1x1 convolution",
)
