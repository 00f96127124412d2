"""Linear layers of a decoder that read one tensor become one layer.

Queries, keys and values of an attention over a cache, which takes them packed; gate and up of an
MLP, split behind it. The input is quantized once and the kernel is called once; each output is
computed as before, from its own row of weights. Layers with different forms (bits, blocks, with or
without a bias) stay separate.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.graph import torch_ops
from qtool.core.ops.attention import grouped_attention
from qtool.passes.graph_pass import GraphPass
from qtool.passes.rewrite_rules import insert_before

aten = torch.ops.aten
_AXES: Mapping[Any, Mapping[int, int]] = {
    aten.linear.default: {1: 0, 2: 0},
    torch_ops.linear_nbits: {1: 0, 2: 0, 3: 0, 4: 0},
    torch_ops.dynamic_linear: {1: 1, 2: 0, 3: 0},
}
"""Layer -> position of a stored tensor: its axis of outputs."""


def _rewrite(module: fx.GraphModule) -> int:
    attentions = [n for n in G.calls(module.graph) if n.target is grouped_attention]
    if not attentions:
        return 0
    groups = [g for g in _groups(module).values() if len(g) > 1]
    for group in groups:
        _pack(module, group)
    for node in attentions:
        _take_packed(node)
    return len(groups)


def _groups(module: fx.GraphModule) -> dict[Any, list[fx.Node]]:
    groups: dict[Any, list[fx.Node]] = {}
    for node in G.calls(module.graph):
        if node.target in _AXES and (form := _form(node)) is not None:
            groups.setdefault(form, []).append(node)
    return groups


def _form(node: fx.Node) -> tuple[Any, ...] | None:
    """Return what layers have in common that can be one; None for a weight that has readers."""
    form: list[Any] = [node.target, _unflattened(node.args[0]), G.rank(node)]
    for at, argument in enumerate(_arguments(node)):
        axis = _AXES[node.target].get(at)
        if axis is None or not isinstance(argument, fx.Node):
            form.append(argument if at else None)
            continue
        if argument.op != "get_attr" or len(argument.users) > 1:
            return None
        sizes = list(G.shape(argument))
        form.append((*sizes[:axis], *sizes[axis + 1 :], G.value(argument).dtype))
    return tuple(form)


def _arguments(node: fx.Node) -> list[Any]:
    count = len(G.schema(node).arguments)
    return [*node.args, *[None] * (count - len(node.args))]


def _unflattened(x: Any) -> Any:
    """Return x before flattening to two dimensions, which each layer has of its own."""
    flat = isinstance(x, fx.Node) and x.target is aten.reshape.default and G.rank(x) == 2
    return x.args[0] if flat else x


def _pack(module: fx.GraphModule, layers: Sequence[fx.Node]) -> None:
    first = layers[0]
    name = value_names.joint_layer([G.name_of(n) for n in layers])
    args = _arguments(first)
    for at, axis in _AXES[first.target].items():
        if isinstance(args[at], fx.Node):
            args[at] = _concatenated(module, layers, at, axis, name)
    packed = G.add_call(first, first.target, args, name, first)
    sizes = [int(G.shape(n)[-1]) for n in layers]
    parts = G.add_call(
        first, aten.split_with_sizes.default, (packed, sizes, -1), f"{name}.split", first
    )
    for index, layer in enumerate(layers):
        part = G.add_call(first, operator.getitem, (parts, index), G.name_of(layer), layer)
        layer.replace_all_uses_with(part)
    for layer in layers:
        layer.graph.erase_node(layer)


def _concatenated(
    module: fx.GraphModule, layers: Sequence[fx.Node], at: int, axis: int, name: str
) -> fx.Node:
    """Store the tensors at one position of layers as one."""
    stored = [_arguments(n)[at] for n in layers]
    tensors = (G.tensor(module, n) for n in stored)
    (data,) = G.computed(lambda *values: [torch.cat(values, axis).contiguous()], *tensors)
    part = G.name_of(stored[0]).removeprefix(f"{G.name_of(layers[0])}.")
    return G.add_tensor(module, next(iter(module.graph.nodes)), data, f"{name}.{part}")


def _take_packed(node: fx.Node) -> None:
    """Pass queries, keys and values as one tensor where they are the parts of one."""
    tensors: list[Any] = list(node.args[:3])
    parts = [p.args[0] if p.target is aten.reshape.default else p for p in tensors if p is not None]
    if len(parts) < 3 or not all(p.target is operator.getitem for p in parts):
        return
    split = parts[0].args[0]
    if [p.args for p in parts] != [(split, i) for i in range(len(split.args[1]))]:
        return
    packed = split.args[0]
    if G.rank(packed) == 2 and tensors[0] is not parts[0]:
        sizes = [*tensors[0].args[1][:2], G.shape(packed)[-1]]
        packed = insert_before(node, aten.reshape.default, (packed, sizes), "input")
    if G.rank(packed) == 3:
        node.args = (packed, None, None, *node.args[3:])


packed_projections = GraphPass(
    "packed_projections", _rewrite, reason="one kernel reads an input that several layers share"
)
