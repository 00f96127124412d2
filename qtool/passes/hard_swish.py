"""Hard-swish and hard-sigmoid behind integer layers become an integer add (and a product).

hard_sigmoid(x) = clamp(x / 6 + 1/2, 0, 1). Dividing by six changes only the scale of the codes, and
quantizing the sum clamps anyway, so an integer add remains, and for hard-swish an integer product
behind it. The runtime has no integer kernel for either operator.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass, first_match

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


def _in_codes(node: object) -> bool:
    """Return whether a value comes from a convolution through operators that work on codes."""
    while isinstance(node, fx.Node) and node.target in _THROUGH:
        source = node.args[0]
        node = source[0] if isinstance(source, list | tuple) else source
    return isinstance(node, fx.Node) and node.target is torch_ops.conv


def _applies(node: fx.Node) -> bool:
    return node.target in (aten.hardswish.default, aten.hardsigmoid.default) and _in_codes(
        node.args[0]
    )


def _rewrite(module: fx.GraphModule) -> int:
    count = 0
    for node in G.calls(module.graph):
        if not _applies(node):
            continue
        x, name = node.args[0], G.name_of(node)
        half = G.add_tensor(
            module,
            next(iter(module.graph.nodes)),
            torch.tensor([0.5], dtype=torch.float32),
            f"{name}.half",
        )
        sixth = G.add_call(node, torch_ops.rescale, (x, 1.0 / 6.0), f"{name}.sixth", node)
        total = G.add_call(node, aten.add.Tensor, (sixth, half), f"{name}.add", node)
        swish = node.target is aten.hardswish.default
        gate_name = f"{name}.gate" if swish else name
        new = G.add_call(node, aten.clamp.default, (total, 0.0, 1.0), gate_name, node)
        if swish:
            new = G.add_call(node, aten.mul.Tensor, (x, new), name, node)
        G.replace(node, new)
        count += 1
    return count


hard_swish = GraphPass(
    "hard_swish",
    _rewrite,
    first_match(_applies),
    reason="quantizing to uint8 clamps: an integer add and an integer product remain",
)
