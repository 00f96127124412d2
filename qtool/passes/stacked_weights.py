"""A product with a stack of stored matrices becomes a linear layer for each of them.

A model that keeps a matrix for each head, group or member of an ensemble in one tensor multiplies
with `bmm`, `matmul` or `einsum`. Runtimes have integer kernels for one constant matrix with a scale
for each output. As layers the matrices are also rounded by GPTQ, or stored with four bits.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.graph import torch_ops
from qtool.core.ops.attention import grouped_attention
from qtool.passes.flatten_linear import flatten_linear
from qtool.passes.graph_pass import GraphPass, first_match
from qtool.passes.product_forms import as_linear, product_letters
from qtool.passes.rewrite_rules import insert_before

aten = torch.ops.aten

MOST_MATRICES = 64
"""With more, calls of kernels would take longer than the products."""
LARGE = 1 << 16
"""Elements of a matrix whose integer product takes less time than the calls that it adds."""
SHARE = 0.1
"""Part of all stored numbers from which a stack of smaller matrices is worth its size."""
_AXES: Mapping[Any, Mapping[int, int]] = {
    aten.linear.default: {1: 0, 2: 0},
    torch_ops.linear_nbits: {1: 0, 2: 0, 3: 0, 4: 0},
    torch_ops.dynamic_linear: {1: 1, 2: 0, 3: 0},
}
"""Layer -> position of a stored tensor: its axis of outputs."""


@dataclass(frozen=True, eq=False)
class Stack:
    """A product with a stack of matrices.

    Attributes:
        x, weight: the data and the stored tensor.
        bias: a stored tensor that is added, [matrices, 1, outputs], or None.
        letters: those of the data, of the weight, and of the result.
        stacked, summed, own: letter of the matrices, of the sum, and of the outputs.
    """

    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    letters: tuple[list[str], list[str], list[str]]
    stacked: str
    summed: str
    own: str


def _match(node: fx.Node) -> Stack | None:
    product = product_letters(node)
    if product is None:
        return None
    operands, terms = product
    if [t.op == "get_attr" for t in operands].count(True) != 1:
        return None
    if operands[0].op == "get_attr":
        operands, terms = operands[::-1], (terms[1], terms[0], terms[2])
    (x, weight), (data, stored, result) = operands, terms
    unique = all(len(set(term)) == len(term) for term in terms)
    if len(stored) != 3 or not unique or not G.is_float(weight):
        return None
    shared = [c for c in stored if c in data and c in result]
    summed = [c for c in stored if c in data and c not in result]
    own = [c for c in stored if c not in data and c in result]
    if not len(shared) == len(summed) == len(own) == 1:
        return None
    if sorted(result) != sorted([c for c in data if c != summed[0]] + own) or len(data) < 3:
        return None
    count = G.shape(x)[data.index(shared[0])]
    sizes = dict(zip(stored, map(int, G.shape(weight)), strict=True))
    if not (type(count) is int and count == sizes[shared[0]] and 1 < count <= MOST_MATRICES):
        return None
    bias = G.source(node) if node.target is aten.baddbmm.default else None
    if bias is not None and not _is_bias(node, bias, (count, 1, sizes[own[0]])):
        return None
    if not _is_worth_it(weight, count):
        return None
    return Stack(x, weight, bias, (data, stored, result), shared[0], summed[0], own[0])


def _is_worth_it(weight: fx.Node, count: int) -> bool:
    """Return whether layers of the matrices save time, or much of the size of the file."""
    size = G.value(weight).numel()
    stored = (n for n in weight.graph.nodes if n.op == "get_attr" and n.users and G.is_float(n))
    every = sum(G.value(n).numel() for n in stored)
    return len(weight.users) == 1 and (size >= count * LARGE or size >= SHARE * every)


def _is_bias(node: fx.Node, bias: fx.Node, sizes: tuple[int, ...]) -> bool:
    """Return whether a `baddbmm` adds a stored number to each output."""
    factors = [G.argument(node, i, name, 1) for i, name in ((3, "beta"), (4, "alpha"))]
    return bias.op == "get_attr" and factors == [1, 1] and tuple(G.shape(bias)) == sizes


def _rewrite(module: fx.GraphModule, node: fx.Node, stack: Stack) -> None:
    data, stored, result = stack.letters
    axis, name = data.index(stack.stacked), G.name_of(node)
    rest = [c for c in data if c not in (stack.stacked, stack.summed)]
    kept = [c for c in result if c != stack.stacked]
    order = [stored.index(c) for c in (stack.stacked, stack.own, stack.summed)]
    parts: list[fx.Node] = []
    for i in range(int(G.shape(stack.weight)[order[0]])):
        x = insert_before(node, aten.select.int, (stack.x, axis, i), f"{i}.input")
        weight = _matrix(module, stack.weight, f"{name}.{i}.weight", order, i)
        bias = None
        if stack.bias is not None:
            bias = _matrix(module, stack.bias, f"{name}.{i}.bias", [0, 2], i)
        letters = (rest, [stack.own], [stack.summed], kept)
        terms = [c for c in data if c != stack.stacked], [stack.own, stack.summed]
        y = as_linear(node, (x, terms[0]), (weight, terms[1]), letters, bias, part=str(i))
        lifted = (y, result.index(stack.stacked))
        parts.append(insert_before(node, aten.unsqueeze.default, lifted, f"{i}.result"))
    joined = insert_before(node, aten.cat.default, (parts, result.index(stack.stacked)))
    node.replace_all_uses_with(joined)
    node.graph.erase_node(node)


def _matrix(
    module: fx.GraphModule, stored: fx.Node, name: str, order: list[int], index: int
) -> fx.Node:
    """Store one matrix, or vector, of a stack, its axes in an order without that of the stack."""

    def part(values: torch.Tensor) -> list[torch.Tensor]:
        if values.ndim > len(order):
            return [values.flatten(1)[index].clone()]
        return [values.permute(order)[index].contiguous()]

    (data,) = G.computed(part, G.tensor(module, stored))
    return G.add_tensor(module, next(iter(module.graph.nodes)), data, name)


def _run(module: fx.GraphModule) -> int:
    count = 0
    for node in G.calls(module.graph):
        if (stack := _match(node)) is not None:  # not before: it may read another product
            _rewrite(module, node, stack)
            count += 1
    if count:
        flatten_linear.rewrite(module)
    return count


stacked_weights = GraphPass(
    "stacked_weights", _run, first_match(_match), "integer kernels have one matrix of weights"
)


# Linear layers of a decoder that read one tensor become one layer.
#
# Queries, keys and values of an attention over a cache, which takes them packed; gate and up of an
# MLP, split behind it. The input is quantized once and the kernel is called once; each output is
# computed as before, from its own row of weights. Layers with different forms (bits, blocks, with
# or without a bias) stay separate.


def _join_layers(module: fx.GraphModule) -> int:
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
    "packed_projections", _join_layers, reason="one kernel reads an input that several layers share"
)
