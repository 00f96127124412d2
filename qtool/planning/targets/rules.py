"""Conditions that several targets put on a call of an operator: None, or why it stays in float."""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import row_of

aten = torch.ops.aten
PRODUCTS = ("attention", "einsum", "matmul")
"""Products of two activations."""
MIN_TABLE_SIZE = 1 << 16
"""Values of an embedding that are not worth four operators more: 256 KiB in float."""
RECURRENT = ("gru", "lstm", "rnn")
_NUMBER = aten.scalar_tensor.default  # what a size was made, or a value taken out of a tensor
_LAYERS = frozenset({torch_ops.conv, aten.linear.default})


def constant_weights(node: fx.Node) -> str | None:
    weight, bias = node.args[1], G.argument(node, 2, "bias")
    for what, arg in (("weight", weight), ("bias", bias)):
        if isinstance(arg, fx.Node) and arg.op != "get_attr":
            return f"its {what} is computed at run time"
    return float32(node)


def weight_operand_refusal(node: fx.Node) -> str | None:
    """Of a product: what there is to say where an operand is stored, or taken from what is."""
    operands = [a for a in node.args[:2] if isinstance(a, fx.Node)]
    if any(a.op == "get_attr" for a in operands):
        return "its weights are no matrix for all rows; integer kernels take one"
    if any(map(_depends_on_weights_only, operands)):
        return "its weights are chosen at run time; integer kernels take stored ones"
    return None


def _depends_on_weights_only(node: fx.Node) -> bool:
    """Whether all floats that a tensor is made of are stored ones, not yet multiplied: of words,
    too, everything comes from stored tables."""
    seen, left = set[fx.Node](), [node]
    while left:
        each = left.pop()
        if each.op == "get_attr" or each in seen:
            continue
        seen.add(each)
        floats = [n for n in each.all_input_nodes if G.is_float(n)]
        if not floats or ((row := row_of(each)) is not None and row.macs is not None):
            return False
        left += floats
    return True


def stored_weights(node: fx.Node) -> str | None:
    """For operators whose weights alone are stored as codes; their arithmetic stays as it is."""
    row = row_of(node)
    assert row is not None
    for at in (row.weight, *row.extra_weights, row.bias):
        given = node.args[at] if at is not None and at < len(node.args) else None
        if not isinstance(given, fx.Node):
            if at == row.weight:
                return "it is called without its weight"
            continue
        if given.op != "get_attr":
            called = node.target._schema.arguments[at].name  # type: ignore[union-attr]  # an OpOverload
            return f"its {called} is computed at run time"
        if row.from_codes is not None and G.value(given).numel() < MIN_TABLE_SIZE:
            return "its table is small"
    return float32(node, *(n for n in node.all_input_nodes if G.is_float(n)))


def tensors_only(node: fx.Node) -> str | None:
    if not all(isinstance(a, fx.Node) and a.target is not _NUMBER for a in node.args[:2]):
        return "one operand is a number, not a tensor"
    if node.kwargs.get("alpha", 1) != 1:
        return "add with alpha has no integer kernel"
    return float32(node)


def float32(node: fx.Node, *inputs: fx.Node) -> str | None:
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
    """What is moved has to be float32; where it goes (an index) is of any type."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return float32(node, source)


def zero_fill(node: fx.Node) -> str | None:
    if G.argument(node, 2, "value", 0):
        return "it pads with a number other than zero"
    return float32(node)


def average_pool(node: fx.Node) -> str | None:
    _, _, _, padding, ceil_mode, counted, divisor = node.args
    assert isinstance(padding, list | tuple)
    if divisor is not None:
        return "a divisor of its own has no integer kernel"
    if any(padding) and ceil_mode and counted:
        return "ceil_mode with padding that counts has no exact integer kernel"
    return float32(node)


def average_pool_inside(node: fx.Node) -> str | None:
    """For runtimes whose kernel averages only the cells inside the image."""
    _, _, _, padding, ceil_mode, counted, _ = node.args
    assert isinstance(padding, list | tuple)
    if any(padding) and counted:
        return "its mean counts the padding, the kernel's does not"
    if ceil_mode:
        return "ceil_mode has no integer kernel"
    return average_pool(node)


def layer_operand(node: fx.Node) -> fx.Node | None:
    """The operand of an add that comes straight from a layer with weights, and goes nowhere else.

    A runtime that fuses the add into that layer adds in its accumulator.
    """
    for source in node.args[:2]:
        if isinstance(source, fx.Node) and source.target in _LAYERS and len(source.users) == 1:
            return source
    return None


def fused_into_layer(node: fx.Node) -> str | None:
    """An add is worth quantizing where it is fused into the layer that computes one operand."""
    if layer_operand(node) is None:
        return "no operand comes straight from a layer with weights, which it would be fused into"
    return tensors_only(node)
