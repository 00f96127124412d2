"""Linear layers on more than two dimensions become reshape, linear, reshape: one Gemm in ONNX."""

from __future__ import annotations

import torch
from torch import fx

from qtool import graph as G
from qtool.passes.infra import GraphPass

__all__ = ["flatten_linear"]

aten = torch.ops.aten


def _is_deep(node: fx.Node) -> bool:
    return node.target is aten.linear.default and G.rank(node) > 2


def _rewrite(module: fx.GraphModule) -> int:
    found = [n for n in G.calls(module.graph) if _is_deep(n)]
    for node in found:
        x, name = node.args[0], G.name_of(node)
        assert isinstance(x, fx.Node)
        sizes = list(G.shape(x)[:-1])
        dynamic = [axis for axis, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
        for axis in dynamic:
            if len(dynamic) == 1:
                sizes[axis] = -1  # left to the runtime, as in canonical views
                continue
            size = G.add_call(node, aten.sym_size.int, (x, axis), f"{name}.size{axis}", node)
            sizes[axis] = size
        features_in, features_out = int(G.shape(x)[-1]), int(G.shape(node)[-1])
        flat = G.add_call(
            node, aten.reshape.default, (x, [-1, features_in]), f"{name}.flatten", node
        )
        args = (flat, *node.args[1:])
        linear = G.add_call(node, aten.linear.default, args, name, node)
        back = (linear, [*sizes, features_out])
        G.replace(node, G.add_call(node, aten.reshape.default, back, f"{name}.unflatten", node))
    return len(found)


def _leftover(module: fx.GraphModule) -> fx.Node | None:
    return next((n for n in G.calls(module.graph) if _is_deep(n)), None)


flatten_linear = GraphPass("flatten_linear", _rewrite, _leftover)
