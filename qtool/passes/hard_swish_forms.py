"""Written-out hard-swish and hard-sigmoid become one operator.

x * relu6(x + 3) / 6 is how re-implementations of MobileNetV3 and files of PaddlePaddle and
TensorFlow write hard-swish, in several orders. As one operator it has forms in integers; its
steps, constants and a division among them, would compute in float. The form in integers itself
(hard_swish.py), where a plan leaves it in float, is one of these spellings: ONNX Runtime computes
the one operator with the results of a float convolution.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass
from qtool.passes.rewrite_rules import clone_as, commuted, is_call, number

aten = torch.ops.aten


def _rewrite(module: fx.GraphModule) -> int:
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


def _clamped(module: fx.GraphModule, node: Any, high: float, offset: float) -> fx.Node | None:
    """Return x of clamp(x + offset, 0, high)."""
    if not is_call(node, aten.clamp.default) or tuple(node.args[1:]) != (0.0, high):
        return None
    for x, constant in commuted(node.args[0], aten.add.Tensor):
        if isinstance(x, fx.Node) and _is(module, constant, offset):
            return x
    return None


def _scaled(module: fx.GraphModule, node: Any, factor: float) -> fx.Node | None:
    """Return x of x * factor, in any spelling."""
    if is_call(node, torch_ops.rescale) and _is(module, node.args[1], factor):
        return G.source(node)
    if is_call(node, aten.div.Tensor) and _is(module, node.args[1], 1 / factor):
        return G.source(node)
    for x, constant in commuted(node, aten.mul.Tensor):
        if isinstance(x, fx.Node) and _is(module, constant, factor):
            return x
    return None


def _is(module: fx.GraphModule, value: Any, wanted: float) -> bool:
    constant = number(module, value)
    return constant is not None and math.isclose(constant, wanted, rel_tol=1e-6)


hard_swish_forms = GraphPass("hard_swish_forms", _rewrite)
