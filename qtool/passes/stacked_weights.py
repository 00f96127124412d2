"""A product with a stack of stored matrices becomes a linear layer for each of them.

A model that keeps a matrix for each head, group or member of an ensemble in one tensor multiplies
with `bmm`, `matmul` or `einsum`. Runtimes have integer kernels for one constant matrix with a scale
for each output. As layers the matrices are also rounded by GPTQ, or stored with four bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from qtool.core import graph as G
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
            values = values.flatten(1)
            return [values[index].clone()]
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
