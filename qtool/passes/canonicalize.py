"""One form for each operation, so that everything after sees few operators.

Convolutions of every rank and both ATen spellings become `qtool::conv`; inference batch norm
becomes `aten::batch_norm` with one output; `hardtanh`, `relu6` and the clamp spellings become
`aten::clamp`; constant padding becomes `aten::constant_pad_nd`; an average over all spatial
positions, however it is written, becomes `qtool::global_average_pool`; a product with a stored
matrix becomes `aten::linear`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from qtool import graph as G
from qtool import torch_ops
from qtool.passes.infra import GraphPass

__all__ = ["canonicalize"]

aten = torch.ops.aten
Rule = Callable[[fx.GraphModule, fx.Node], fx.Node | None]


def ints(value: Any, count: int) -> list[int]:
    values = [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)]
    return values * count if len(values) == 1 else values


def _conv(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    n = G.rank(node) - 2
    padding = G.argument(node, 4, "padding", 0)
    dilation = ints(G.argument(node, 5, "dilation", 1), n)
    if isinstance(padding, str):
        kernel = G.shape(node.args[1])[2:]  # type: ignore[arg-type]  # the weight node
        total = [
            d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)
        ]
        pads = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        pads = ints(padding, n) * 2
    bias, stride = G.argument(node, 2, "bias"), ints(G.argument(node, 3, "stride", 1), n)
    groups = G.argument(node, 6, "groups", 1)
    return _made(node, torch_ops.conv, (*node.args[:2], bias, stride, pads, dilation, groups))


def _convolution(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    n = G.rank(node) - 2
    if transposed:
        target = {
            1: aten.conv_transpose1d.default,
            2: aten.conv_transpose2d.input,
            3: aten.conv_transpose3d.input,
        }[n]
        return _made(
            node, target, (x, weight, bias, stride, padding, output_padding, groups, dilation)
        )
    pads = ints(padding, n) * 2
    args = (x, weight, bias, ints(stride, n), pads, ints(dilation, n), groups)
    return _made(node, torch_ops.conv, args)


def _batch_norm(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    if any(u.target is not operator.getitem or u.args[1] != 0 for u in users):
        return None
    x, weight, bias, mean, variance, momentum, eps = node.args
    args = (x, weight, bias, mean, variance, False, momentum, eps, False)
    made = _made(node, aten.batch_norm.default, args)
    for user in users:
        G.replace(user, made)
    return made


def _addmm(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    bias, x, weight = node.args[:3]
    factors = [G.argument(node, i, name, 1) for i, name in ((3, "beta"), (4, "alpha"))]
    constant = isinstance(bias, fx.Node) and bias.op == "get_attr" and G.rank(bias) == 1
    if not constant or factors != [1, 1] or G.shape(bias)[0] != G.shape(node)[1]:  # type: ignore[arg-type]  # a node
        return None
    return _linear(node, x, weight, bias)


def _product(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, weight = node.args[:2]
    return _linear(node, x, weight, None)


def _linear(node: fx.Node, x: Any, weight: Any, bias: Any) -> fx.Node | None:
    """A product with a stored matrix is a linear layer, whose weight stands [out, in]."""
    if weight.op != "get_attr" or G.rank(weight) != 2 or x.op == "get_attr" or G.rank(x) < 2:
        return None
    name = f"{G.name_of(node)}.weight"
    turned = G.add_call(node, aten.transpose.int, (weight, 0, 1), name, node)
    return _made(node, aten.linear.default, (x, turned, bias))


def _clamp(low: float | None, high: float | None) -> Rule:
    def rule(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        lo = G.argument(node, 1, "min_val", low)
        hi = G.argument(node, 2, "max_val", high)
        if node.target is aten.clamp.default and not any(type(b) is int for b in (lo, hi)):
            return None
        # the exporter knows a clamp with two bounds of one type only
        bounds = [float(b) if isinstance(b, int) else b for b in (lo, hi)]
        return _made(node, aten.clamp.default, (node.args[0], *bounds))

    return rule


def _clamp_max(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    return _made(node, aten.clamp.default, (node.args[0], None, node.args[1]))


def _pad(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    if G.argument(node, 2, "mode", "constant") != "constant":
        return None
    fill = G.argument(node, 3, "value") or 0.0
    return _made(node, aten.constant_pad_nd.default, (node.args[0], node.args[1], fill))


def _adaptive_pool(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, out = node.args[0], G.shape(node)[2:]
    assert isinstance(x, fx.Node)
    if all(size == 1 for size in out):
        return _global(node, keep=True)
    sizes = G.shape(x)[2:]
    fixed = all(isinstance(s, int) for s in sizes)
    if len(out) != 2 or not fixed or any(s % o for s, o in zip(sizes, out, strict=True)):
        return None
    kernel = [s // o for s, o in zip(sizes, out, strict=True)]  # equal windows: a plain pool
    return _made(node, aten.avg_pool2d.default, (x, kernel, kernel))


def _split(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """split, chunk, unbind: one slice (or select) for each part that is read."""
    x, parts = node.args[0], G.value(node)
    assert isinstance(x, fx.Node)
    users = list(node.users)
    if any(u.target is not operator.getitem for u in users):
        return None
    unbind = node.target is aten.unbind.int
    axis = int(G.argument(node, 1 if unbind else 2, "dim", 0))
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + (1 if unbind else part.shape[axis]))
    if not all(isinstance(s, int) for s in starts):
        return None
    for user in users:
        i = user.args[1]
        assert isinstance(i, int)
        i = i % len(parts)
        target, args = (
            (aten.select.int, (x, axis, i))
            if unbind
            else (aten.slice.Tensor, (x, axis, starts[i], starts[i + 1]))
        )
        G.replace(user, _made(user, target, args))
    return x if not node.users else None


def _average_pool(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """An average pool with a single, unpadded window: cut to the window, then a global pool."""
    x = node.args[0]
    assert isinstance(x, fx.Node)
    spatial, n = G.shape(x)[2:], G.rank(x) - 2
    kernel, padding = ints(node.args[1], n), ints(G.argument(node, 3, "padding", 0), n)
    one_window = G.same_sizes(G.shape(node)[2:], [1] * n)
    if not one_window or any(padding) or G.argument(node, 6, "divisor_override") is not None:
        return None
    name = G.name_of(node)
    for axis, (size, width) in enumerate(zip(spatial, kernel, strict=True), start=2):
        if not G.same_sizes([size], [width]):
            x = G.add_call(
                node, aten.slice.Tensor, (x, axis, 0, width), f"{name}.slice{axis}", node
            )
    return G.add_call(node, torch_ops.global_average_pool, (x,), name, node)


def _mean(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, dims = node.args[0], G.argument(node, 1, "dim")
    assert isinstance(x, fx.Node)
    if not dims or G.rank(x) < 3 or node.kwargs.get("dtype") is not None:
        return None
    if {d % G.rank(x) for d in dims} != set(range(2, G.rank(x))) or not _is_image(x):
        return None
    return _global(node, keep=bool(G.argument(node, 2, "keepdim", False)))


def _view(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """A view with one computed size: the size is left to the runtime (-1), not to a subgraph."""
    sizes = node.args[1]
    assert isinstance(sizes, list | tuple)
    computed = [i for i, s in enumerate(sizes) if isinstance(s, fx.Node)]
    if len(computed) != 1 or -1 in sizes or 0 in sizes:
        return None
    free = [-1 if i in computed else s for i, s in enumerate(sizes)]
    return _made(node, aten.reshape.default, (node.args[0], free))


def _is_image(x: fx.Node) -> bool:
    """Rank 4 or 5: a mean over dims (2, ...) is pooling. Rank 3 may be [batch, time, features]."""
    return G.rank(x) in (4, 5)


def _global(node: fx.Node, keep: bool) -> fx.Node:
    pooled = _made(node, torch_ops.global_average_pool, (node.args[0],))
    if keep:
        return pooled
    dims = list(range(2, G.rank(pooled)))
    return G.add_call(node, aten.squeeze.dims, (pooled, dims), f"{G.name_of(node)}.squeeze", node)


def _made(node: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    return G.add_call(node, target, args, G.name_of(node), node)


RULES: Mapping[Any, Rule] = {
    aten.conv1d.default: _conv,
    aten.conv2d.default: _conv,
    aten.conv3d.default: _conv,
    aten.conv1d.padding: _conv,
    aten.conv2d.padding: _conv,
    aten.conv3d.padding: _conv,
    aten.convolution.default: _convolution,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.addmm.default: _addmm,
    aten.mm.default: _product,
    aten.matmul.default: _product,
    aten.hardtanh.default: _clamp(-1.0, 1.0),
    aten.relu6.default: _clamp(0.0, 6.0),
    aten.clip.default: _clamp(None, None),
    aten.clamp.default: _clamp(None, None),
    aten.clamp_min.default: _clamp(None, None),
    aten.clamp_max.default: _clamp_max,
    aten.pad.default: _pad,
    aten.adaptive_avg_pool1d.default: _adaptive_pool,
    aten.adaptive_avg_pool2d.default: _adaptive_pool,
    aten.adaptive_avg_pool3d.default: _adaptive_pool,
    aten._adaptive_avg_pool2d.default: _adaptive_pool,
    aten._adaptive_avg_pool3d.default: _adaptive_pool,
    aten.avg_pool1d.default: _average_pool,
    aten.avg_pool2d.default: _average_pool,
    aten.avg_pool3d.default: _average_pool,
    aten.mean.dim: _mean,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.chunk.default: _split,
    aten.unbind.int: _split,
    aten.reshape.default: _view,
}
_ALWAYS = {t for t, rule in RULES.items() if rule in (_conv, _convolution)}


def _rewrite(module: fx.GraphModule) -> int:
    count = 0
    for node in G.calls(module.graph):
        rule = RULES.get(node.target)
        made = rule(module, node) if rule is not None else None
        if made is not None:
            G.replace(node, made)
            count += 1
    return count


def _leftover(module: fx.GraphModule) -> fx.Node | None:
    return next((n for n in module.graph.nodes if n.target in _ALWAYS), None)


canonicalize = GraphPass("canonicalize", _rewrite, _leftover)
