"""Kernel conditions that targets share: each returns why a call stays in float, or None."""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import row_of

aten = torch.ops.aten
PRODUCTS = ("attention", "einsum", "matmul")
"""Products of two activations."""
EXTREMES = ("reduce_max", "reduce_min")
"""Extremes along axes, which are codes of their input."""
TOO_SMALL = "its table is too small to gain from codes"
MIN_TABLE_SIZE = 1 << 16
"""Elements; a smaller embedding (256 KiB in float) is not worth four more operators."""
RECURRENT = ("gru", "lstm", "rnn")
_NUMBER = aten.scalar_tensor.default  # a size, or a value taken out of a tensor
_LAYERS = frozenset({torch_ops.conv, aten.linear.default})


def constant_weights(node: fx.Node) -> str | None:
    """Require a stored weight and bias."""
    weight, bias = node.args[1], G.argument(node, 2, "bias")
    for what, arg in (("weight", weight), ("bias", bias)):
        if isinstance(arg, fx.Node) and arg.op != "get_attr":
            return f"its {what} is computed at run time"
    return float32(node)


def weight_operand_refusal(node: fx.Node) -> str | None:
    """Return why a product with an operand made of stored weights is not a layer, or None."""
    operands = [a for a in node.args[:2] if isinstance(a, fx.Node)]
    if any(a.op == "get_attr" for a in operands):
        return "it has several weight matrices, which are small, shared or more than 64"
    if any(map(_depends_on_weights_only, operands)):
        return "its weights are selected at run time; integer kernels need constants"
    return None


def _depends_on_weights_only(node: fx.Node) -> bool:
    """Return whether a tensor is made of stored floats alone, without a product in between.

    (Behind a product, everything that a model computes from token ids comes from stored tables.)
    """
    visited, queue = set[fx.Node](), [node]
    while queue:
        each = queue.pop()
        if each.op == "get_attr" or each in visited:
            continue
        visited.add(each)
        floats = [n for n in each.all_input_nodes if G.is_float(n)]
        if not floats or ((row := row_of(each)) is not None and row.macs is not None):
            return False
        queue += floats
    return True


def stored_weights(node: fx.Node) -> str | None:
    """Require stored float32 weights, for operators of which only the weights are quantized."""
    row = row_of(node)
    assert row is not None
    for at in (row.weight, *row.extra_weights, row.bias):
        weight = None if at is None or at >= len(node.args) else node.args[at]
        if at is None or not isinstance(weight, fx.Node):
            if at == row.weight:
                return "it is called without a weight"
            continue
        if weight.op != "get_attr":
            argument = G.schema(node).arguments[at].name
            return f"its {argument} is computed at run time"
        if row.from_codes is not None and G.value(weight).numel() < MIN_TABLE_SIZE:
            return TOO_SMALL
    return float32(node, *(n for n in node.all_input_nodes if G.is_float(n)))


def tensors_only(node: fx.Node) -> str | None:
    """Require two float32 tensors as operands."""
    if not all(isinstance(a, fx.Node) and a.target is not _NUMBER for a in node.args[:2]):
        return "one operand is a scalar, not a tensor"
    if node.kwargs.get("alpha", 1) != 1:
        return "add with alpha has no integer kernel"
    return float32(node)


def float32(node: fx.Node, *inputs: fx.Node) -> str | None:
    """Require float32 in the result and in `inputs` (default: all), and no empty tensor."""
    for each in [node, *(inputs or node.all_input_nodes)]:
        value = G.value(each)
        if isinstance(value, torch.Tensor) and any(type(s) is int and not s for s in value.shape):
            return f"{G.name_of(each)} is empty"
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            if value.dtype != torch.float32:
                return (
                    f"{G.name_of(each)} is {str(value.dtype).removeprefix('torch.')}, not float32"
                )
        elif isinstance(value, torch.Tensor):
            return f"{G.name_of(each)} is {str(value.dtype).removeprefix('torch.')}, not float"
    return None


def float32_data(node: fx.Node) -> str | None:
    """Require float32 in the first input; indices may have any type."""
    source = G.source(node)
    return float32(node, source)


def zero_fill(node: fx.Node) -> str | None:
    """Require padding with zeros, of widths that are numbers."""
    widths = node.args[1]
    assert isinstance(widths, list | tuple)
    if not all(isinstance(width, int) for width in widths):
        return "its widths are computed when the model runs"
    if G.argument(node, 2, "value", 0):
        return "it pads with a value other than zero"
    return float32(node)


def average_pool(node: fx.Node) -> str | None:
    """Require a mean without divisor_override and without padding under ceil_mode."""
    _, _, _, padding, ceil_mode, counted, divisor = node.args
    assert isinstance(padding, list | tuple)
    if divisor is not None:
        return "divisor_override has no integer kernel"
    if any(padding) and ceil_mode and counted:
        return "ceil_mode with count_include_pad has no exact integer kernel"
    return float32(node)


def layer_operand(node: fx.Node) -> fx.Node | None:
    """Return the operand of an add that comes directly from a layer and has no other reader.

    A runtime that fuses the add into that layer adds in its accumulator.
    """
    for source in node.args[:2]:
        if isinstance(source, fx.Node) and source.target in _LAYERS and len(source.users) == 1:
            return source
    return None


def fused_into_layer(node: fx.Node) -> str | None:
    """Require an add that is fused into the layer computing one operand."""
    if layer_operand(node) is None:
        return "no operand comes directly from a layer that the add could be fused into"
    return tensors_only(node)
