"""A linear layer on other than two dimensions becomes reshape, linear, reshape: a Gemm in ONNX."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument, Target

from qtool.core import graph as G
from qtool.core.ops import row_of
from qtool.passes.graph_pass import GraphPass, first_match, pattern_pass
from qtool.passes.rewrite_rules import add_parameters, clone_as, leading_sizes

aten = torch.ops.aten
Valued = dict[tuple[Any, ...], fx.Node]
"""Sizes and dtype -> a flat node with them, whose value need not be inferred again."""


def _is_deep(node: fx.Node) -> bool:
    return node.target is aten.linear.default and G.rank(node) != 2


def _rewrite(module: fx.GraphModule) -> int:
    layers = [n for n in G.calls(module.graph) if _is_deep(n)]
    valued: Valued = {}
    for node in layers:
        _flatten(node, valued)
    for node in G.calls(module.graph):
        _join_reshapes(node)
    return len(layers)


def _flatten(node: fx.Node, valued: Valued) -> None:
    x, name = G.source(node), G.name_of(node)
    sizes = leading_sizes(node, x, G.rank(x) - 1)
    features_in, features_out = int(G.shape(x)[-1]), int(G.shape(node)[-1])

    def add(target: Target, args: tuple[Argument, ...], name: str, width: int) -> fx.Node:
        key = (*map(str, G.shape(x)[:-1]), width, G.value(x).dtype)
        call = G.add_call(node, target, args, name, node, valued.get(key))
        valued.setdefault(key, call)
        return call

    flat = add(aten.reshape.default, (x, [-1, features_in]), f"{name}.flatten", features_in)
    result = add(aten.linear.default, (flat, *node.args[1:]), name, features_out)
    last = node
    while (unary := _only_elementwise(last)) is not None:
        args = (result, *unary.args[1:])
        flat_unary = G.add_call(unary, unary.target, args, G.name_of(unary), unary, result)
        flat_unary.kwargs = unary.kwargs
        result, last = flat_unary, unary
    args = (result, [*sizes, features_out])
    deep = G.add_call(last, aten.reshape.default, args, f"{name}.unflatten", node, last)
    last.replace_all_uses_with(deep)


def _only_elementwise(node: fx.Node) -> fx.Node | None:
    """Return the only reader of a node, if it works element by element."""
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    return reader if reader is not None and stays_flat(reader) else None


def stays_flat(node: fx.Node) -> bool:
    """Return whether an operator stays flat, next to its layer."""
    row = row_of(node)
    return row is not None and row.flat


def _join_reshapes(node: fx.Node) -> None:
    """Let a reshape of a reshape read the first one's input; remove it if the shape is the same."""
    if node.target is not aten.reshape.default:
        return
    source = node.args[0]
    while isinstance(source, fx.Node) and source.target is aten.reshape.default:
        source = source.args[0]
    assert isinstance(source, fx.Node)
    node.args = (source, *node.args[1:])
    if str(G.shape(source)) == str(G.shape(node)):
        G.replace(node, source)


flatten_linear = GraphPass("flatten_linear", _rewrite, first_match(_is_deep))


# A linear layer without a bias in front of a reshape gets a bias of the smallest normal number.
#
# OpenVINO moves the dequantization of a layer behind a reshape that follows, with the channels'
# scales along the wrong dimension: it computes wrong results where sizes fit, and fails to load the
# file where they do not. An addition in between prevents that; one of zeros is removed first. The
# smallest normal number changes no result but zero.


def _lacks_bias(node: fx.Node) -> bool:
    if node.target is not aten.linear.default or G.rank(node) != 2 or not _reshaped(node):
        return False
    bias = G.argument(node, 2, "bias")
    if not isinstance(bias, fx.Node):
        return True
    module = node.graph.owning_module
    if bias.op != "get_attr" or module is None:
        return False
    return not G.read_values(G.tensor(module, bias)).any()


def _reshaped(node: fx.Node) -> bool:
    """Return whether `node`, or an elementwise function of it (a ReLU), is reshaped."""
    elementwise = [
        user
        for user in node.users
        if len(user.all_input_nodes) == 1
        and isinstance(value := user.meta.get("val"), torch.Tensor)
        and value.dim() == 2
    ]
    return any(u.target is aten.reshape.default for u in node.users) or any(
        map(_reshaped, elementwise)
    )


def _add_bias(module: fx.GraphModule, node: fx.Node, _: bool) -> None:
    value = G.value(node)
    tiny = torch.full((int(value.shape[1]),), torch.finfo(value.dtype).tiny)
    (bias,) = add_parameters(module, G.name_of(node), bias=tiny)
    G.replace(node, clone_as(node, aten.linear.default, (*node.args[:2], bias)))


keep_bias = pattern_pass(
    "hold_bias",
    _lacks_bias,
    _add_bias,
    "keeps the runtime from moving a dequantization behind a reshape",
)
