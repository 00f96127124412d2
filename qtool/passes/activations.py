"""Activations in the forms that the kernels of a runtime have."""

from __future__ import annotations

import math
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.ops import Role, row_of
from qtool.core.types import Bounds
from qtool.passes.graph_pass import GraphPass, first_match, pattern_pass
from qtool.passes.rewrite_rules import (
    add_parameters,
    clone_as,
    commuted,
    insert_before,
    is_call,
    number,
)

aten = torch.ops.aten
_THROUGH = frozenset(
    {
        aten.relu.default,
        aten.clamp.default,
        aten.reshape.default,
        aten.slice.Tensor,
        aten.cat.default,
        aten.add.Tensor,
        aten.mul.Tensor,
        torch_ops.global_average_pool,
    }
)
_MUL, _ADD = aten.mul.Tensor, aten.add.Tensor
_CLAMPING = frozenset({"add", "mul", "matmul", "concat"})
"""Keys of operators without weights whose kernels clamp."""
LARGE = 4096
"""Least number of elements of a sample."""


# Hard-swish and hard-sigmoid behind integer layers become an integer add (and a product).
#
# hard_sigmoid(x) = clamp(x / 6 + 1/2, 0, 1), elsewhere with another slope and offset. The slope
# changes only the scale of the codes, and quantizing the sum clamps anyway, so an integer add
# remains, and for hard-swish an integer product behind it. The runtime has no integer kernel for
# either operator. Steps that then stay in float become one operator of the file again
# (`hard_swish_forms`), which a float convolution computes with its results.


def _in_codes(node: object) -> bool:
    """Return whether a value comes from a convolution through operators that work on codes."""
    while isinstance(node, fx.Node) and node.target in _THROUGH:
        source = node.args[0]
        node = source[0] if isinstance(source, list | tuple) else source
    return isinstance(node, fx.Node) and node.target is torch_ops.conv


class _Gate(NamedTuple):
    """clamp(slope * x + offset, 0, 1)."""

    x: fx.Node
    slope: float
    offset: float


def _applies(node: fx.Node) -> bool:
    return node.target in (aten.hardswish.default, aten.hardsigmoid.default) and _in_codes(
        node.args[0]
    )


def _gate(module: fx.GraphModule, node: fx.Node) -> _Gate | None:
    """Return the gate that a node computes behind an integer layer, or multiplies x with."""
    if _applies(node):
        return _Gate(G.source(node), 1 / 6, 0.5)
    if not is_call(node, aten.clamp.default) or tuple(node.args[1:]) != (0.0, 1.0):
        return None
    for product, added in commuted(node.args[0], aten.add.Tensor):
        offset = number(module, added)
        for x, factor in commuted(product, aten.mul.Tensor):
            slope = number(module, factor)
            if offset is not None and slope is not None and slope > 0 and _in_codes(x):
                return _Gate(x, slope, offset)
    return None


def _write_gates(module: fx.GraphModule) -> int:
    gates = [(n, gate) for n in G.calls(module.graph) if (gate := _gate(module, n)) is not None]
    for node, (x, slope, offset) in gates:
        name, first = G.name_of(node), next(iter(module.graph.nodes))
        added = torch.tensor([offset], dtype=torch.float32)
        half = G.add_tensor(module, first, added, f"{name}.half")
        add = partial(G.add_call, node, like=node, value_from=x)  # elementwise: the form of x
        sixth = add(torch_ops.rescale, (x, slope), f"{name}.sixth")
        total = add(aten.add.Tensor, (sixth, half), f"{name}.add")
        swish = node.target is aten.hardswish.default
        new = add(aten.clamp.default, (total, 0.0, 1.0), f"{name}.gate" if swish else name)
        if swish:
            new = add(aten.mul.Tensor, (x, new), name)
        G.replace(node, new)
    return len(gates)


hard_swish = GraphPass(
    "hard_swish",
    _write_gates,
    first_match(_applies),
    reason="quantizing to uint8 clamps: an integer add and an integer product remain",
)


# Written-out hard-swish and hard-sigmoid become one operator.
#
# x * relu6(x + 3) / 6 is how re-implementations of MobileNetV3 and files of PaddlePaddle and
# TensorFlow write hard-swish, in several orders. As one operator it has forms in integers; its
# steps, constants and a division among them, would compute in float. The form in integers itself
# (`hard_swish`), where a plan leaves it in float, is one of these spellings: ONNX Runtime computes
# the one operator with the results of a float convolution.


def _join_gates(module: fx.GraphModule) -> int:
    count = 0
    for node in G.calls(module.graph):
        for find, target in (
            (_argument_of_swish, aten.hardswish.default),
            (_argument_of_sigmoid, aten.hardsigmoid.default),
        ):
            if G.is_float(node) and (x := find(module, node)) is not None:
                G.replace(node, clone_as(node, target, (x,)))
                count += 1
                break
    return count


def _argument_of_swish(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return x of x * hardsigmoid(x), or of (x * relu6(x + 3)) / 6."""
    for x, gate in commuted(node, aten.mul.Tensor):
        alone = is_call(gate, aten.hardsigmoid.default) and len(gate.users) == 1
        if alone and gate.args[0] is x and isinstance(x, fx.Node):
            return x
    product = _scaled(module, node, 1 / 6)
    for x, gate in commuted(product, aten.mul.Tensor):
        if isinstance(x, fx.Node) and _clamped(module, gate, 6.0, 3.0) is x:
            return x
    return None


def _argument_of_sigmoid(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return x of relu6(x + 3) / 6, or of clamp(x / 6 + 1/2, 0, 1)."""
    if (x := _clamped(module, _scaled(module, node, 1 / 6), 6.0, 3.0)) is not None:
        return x
    return _scaled(module, _clamped(module, node, 1.0, 0.5), 1 / 6)


def _clamped(module: fx.GraphModule, node: Argument, high: float, offset: float) -> fx.Node | None:
    """Return x of clamp(x + offset, 0, high)."""
    if not is_call(node, aten.clamp.default) or tuple(node.args[1:]) != (0.0, high):
        return None
    for x, constant in commuted(node.args[0], aten.add.Tensor):
        if isinstance(x, fx.Node) and _is(module, constant, offset):
            return x
    return None


def _scaled(module: fx.GraphModule, node: Argument, factor: float) -> fx.Node | None:
    """Return x of x * factor, in any spelling."""
    if is_call(node, torch_ops.rescale) and _is(module, node.args[1], factor):
        return G.source(node)
    if is_call(node, aten.div.Tensor) and _is(module, node.args[1], 1 / factor):
        return G.source(node)
    for x, constant in commuted(node, aten.mul.Tensor):
        if isinstance(x, fx.Node) and _is(module, constant, factor):
            return x
    return None


def _is(module: fx.GraphModule, value: Argument, wanted: float) -> bool:
    constant = number(module, value)
    return constant is not None and math.isclose(constant, wanted, rel_tol=1e-6)


hard_swish_forms = GraphPass("hard_swish_forms", _join_gates)


# Clamps behind what has no kernel that clamps get one in front of them.
#
# A relu of a tensor that has other readers, too, of an input or of a pool stays in float: no kernel
# takes it. One does take a relu of the product with 1, whose code is exact. A clamp from another
# number is one from 0 of what is moved there, and back.


def _clamp_bounds(node: fx.Node) -> Bounds | None:
    row, source = row_of(node), node.args[0] if node.args else None
    if row is None or row.role is not Role.CLIP or not isinstance(source, fx.Node):
        return None
    low, _ = bounds = row.bounds(node)
    if low is None or source.op == "get_attr":
        return None
    layer = row_of(source) if source.op == "call_function" else None
    clamps = layer is not None and (layer.weight is not None or layer.key in _CLAMPING)
    return None if low == 0 and clamps and len(source.users) == 1 else bounds


def _clamp_product(module: fx.GraphModule, node: fx.Node, bounds: Bounds) -> None:
    low, high = bounds
    assert low is not None
    values = {"one": 1.0} if low == 0 else {"down": -low, "up": low}
    stored = {key: torch.tensor([value]) for key, value in values.items()}
    first, *last = add_parameters(module, G.name_of(node), **stored)
    x = insert_before(node, _ADD if last else _MUL, (node.args[0], first), "moved")
    if not last:
        G.replace(node, clone_as(node, node.target, (x, *node.args[1:])))
        return
    ends = (0, None if high is None else high - low)
    x = insert_before(node, aten.clamp.default, (x, *ends), "cut")
    G.replace(node, clone_as(node, _ADD, (x, *last)))


unfused_clamps = pattern_pass(
    "unfused_clamps",
    _clamp_bounds,
    _clamp_product,
    "a clamp runs in integers as a part of the kernel in front of it",
)


# PReLU of a large tensor as a product and a maximum.
#
# ONNX Runtime 1.31's PRelu takes 4.6 ns for each element of a tensor of 64 k elements or more,
# eight to twelve times as long as the two operators; one of 4 k elements takes as long as both.
# With slopes up to 1, PReLU is max(x, slope x) to the last bit; else it is x + (slope - 1) min(x,
# 0).


def _is_large_prelu(node: fx.Node) -> bool:
    if node.target is not aten.prelu.default or G.source(node, 1).op != "get_attr":
        return False
    sizes = G.shape(node)[1:]
    return not all(isinstance(size, int) for size in sizes) or prod(map(int, sizes)) >= LARGE


def _write_prelu(module: fx.GraphModule) -> int:
    nodes = [node for node in G.calls(module.graph) if _is_large_prelu(node)]
    for node in nodes:
        x, name = G.source(node), G.name_of(node)
        slope = G.read_values(G.tensor(module, G.source(node, 1)))
        steep = bool(slope.max() > 1)
        shape = [-1, *[1] * (G.rank(node) - 2)] if slope.numel() > 1 else []
        column = (slope - float(steep)).reshape(shape)
        first = next(iter(module.graph.nodes))
        stored = G.add_tensor(module, first, G.as_parameter(column), f"{name}.slope")
        low = G.add_call(node, aten.clamp.default, (x, None, 0.0), f"{name}.low", x) if steep else x
        scaled = G.add_call(node, aten.mul.Tensor, (low, stored), f"{name}.scaled", x)
        join = aten.add.Tensor if steep else aten.maximum.default
        G.replace(node, clone_as(node, join, (x, scaled)))
    return len(nodes)


prelu_forms = GraphPass("prelu_forms", _write_prelu)
