"""Different spellings of an operation become one operator, so that later code sees few operators.

Convolutions of every rank and both ATen spellings become `qtool::conv`, transposed ones
`qtool::conv_transpose`; inference batch norm becomes `aten::batch_norm` with one output;
`hardtanh`, `relu6` and the clamps become `aten::clamp`; constant padding becomes
`aten::constant_pad_nd`. Operands that are scalars at run time (a size, `.item()`) become tensors,
and reductions over everything get explicit dimensions, as ONNX requires. Attention of any rank
becomes attention of rank 4, the only rank that the exporter supports. Other files have the rules
for matrix products (product_forms.py), recurrent cells (recurrent.py), lookups (lookup_forms.py),
pools (pool_forms.py), data movement (move_forms.py) and sorting (sort_forms.py).
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.passes.graph_pass import GraphPass
from qtool.passes.lookup_forms import LOOKUP_RULES
from qtool.passes.move_forms import MOVE_RULES, circular_pad
from qtool.passes.pool_forms import POOL_RULES
from qtool.passes.product_forms import PRODUCT_RULES
from qtool.passes.recurrent import CELL_RULES
from qtool.passes.rewrite_rules import Rule, Rules, clone_as, insert_before, ints
from qtool.passes.sort_forms import SORT_RULES

aten = torch.ops.aten

_SCALAR = {
    aten.rsub.Scalar: aten.rsub.Tensor,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
    aten.remainder.Scalar: aten.remainder.Tensor,
    aten.fmod.Scalar: aten.fmod.Tensor,
    **{
        getattr(aten, name).Scalar: getattr(aten, name).Tensor
        for name in ("gt", "ge", "lt", "le", "eq", "ne")
    },
}


def _with_tensors(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return the operator with tensors of one float type: ONNX does not mix floats and integers,
    and a scalar has no scale."""
    operands = node.args[:2]
    first = next((a for a in operands if G.is_float(a)), None)
    if first is None or not any(map(_is_scalar, operands)):
        return None
    tensors = [_tensor(node, first, a) if _is_scalar(a) else a for a in operands]
    target = _SCALAR.get(node.target, node.target)
    new = insert_before(node, target, (*tensors, *node.args[2:]))
    if node.kwargs:
        new.kwargs = dict(node.kwargs)
        G.infer(new)
    return new


def _is_scalar(x: Argument) -> bool:
    return isinstance(x, fx.Node) and not G.is_tensor(x)


def _tensor(node: fx.Node, like: Any, number: Argument) -> fx.Node:
    tensor = insert_before(node, aten.scalar_tensor.default, (number,), "number")
    tensor.kwargs = {"dtype": G.value(like).dtype}
    return G.infer(tensor)


def _over_all(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x = node.args[0]
    if G.argument(node, 1, "dim") or not isinstance(x, fx.Node) or not G.rank(x):
        return None
    keep = bool(G.argument(node, 2, "keepdim", False))
    return insert_before(node, node.target, (x, list(range(G.rank(x))), keep))


def _conv(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    n = G.rank(node) - 2
    padding = G.argument(node, 4, "padding", 0)
    dilation = ints(G.argument(node, 5, "dilation", 1), n)
    if isinstance(padding, str):
        kernel = G.shape(G.source(node, 1))[2:]
        total = [
            d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)
        ]
        pads = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        pads = ints(padding, n) * 2
    bias, stride = G.argument(node, 2, "bias"), ints(G.argument(node, 3, "stride", 1), n)
    groups = G.argument(node, 6, "groups", 1)
    return clone_as(node, torch_ops.conv, (*node.args[:2], bias, stride, pads, dilation, groups))


def _convolution(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    n = G.rank(node) - 2
    steps, wide = ints(stride, n), ints(dilation, n)
    pads, more = ints(padding, n), ints(output_padding, n)
    if transposed:
        args = (x, weight, bias, steps, pads, more, groups, wide)
        return clone_as(node, torch_ops.conv_transpose, args)
    return clone_as(node, torch_ops.conv, (x, weight, bias, steps, pads * 2, wide, groups))


def _conv_transpose(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    n, bias = G.rank(node) - 2, G.argument(node, 2, "bias")
    stride, padding, more = (
        ints(G.argument(node, i, name, default), n)
        for i, name, default in ((3, "stride", 1), (4, "padding", 0), (5, "output_padding", 0))
    )
    groups, dilation = G.argument(node, 6, "groups", 1), ints(G.argument(node, 7, "dilation", 1), n)
    args = (*node.args[:2], bias, stride, padding, more, groups, dilation)
    return clone_as(node, torch_ops.conv_transpose, args)


def _batch_norm(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    if any(u.target is not operator.getitem or u.args[1] != 0 for u in users):
        return None
    x, weight, bias, mean, variance, momentum, eps = node.args
    args = (x, weight, bias, mean, variance, False, momentum, eps, False)
    valued = users[0] if users else None
    norm = G.add_call(node, aten.batch_norm.default, args, G.name_of(node), node, valued)
    for user in users:
        G.replace(user, norm)
    return norm


def _clamp(low: float | None, high: float | None) -> Rule:
    def rule(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
        lo = G.argument(node, 1, "min_val", low)
        hi = G.argument(node, 2, "max_val", high)
        if not G.is_float(node):  # integers stay integers
            same = node.target is aten.clamp.default
            return None if same else insert_before(node, aten.clamp.default, (node.args[0], lo, hi))
        if node.target is aten.clamp.default and not any(type(b) is int for b in (lo, hi)):
            return None
        # the exporter only supports a clamp with bounds of one type
        bounds = [float(b) if isinstance(b, int) else b for b in (lo, hi)]
        return clone_as(node, aten.clamp.default, (node.args[0], *bounds))

    return rule


def _rsub(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Cast n in 1.0 - n for integers n: the exporter subtracts floats from floats only."""
    x = node.args[0]
    if G.is_float(x) or not G.is_float(node):
        return _with_tensors(module, node)
    floats = insert_before(node, aten.to.dtype, (x, G.value(node).dtype), "float")
    return insert_before(node, node.target, (floats, *node.args[1:]))


def _clamp_max(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    return clone_as(node, aten.clamp.default, (node.args[0], None, node.args[1]))


def _pad(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    mode = G.argument(node, 2, "mode", "constant")
    if mode == "circular":
        return circular_pad(node)
    if mode != "constant":
        return None
    fill = G.argument(node, 3, "value") or 0.0
    return clone_as(node, aten.constant_pad_nd.default, (node.args[0], node.args[1], fill))


def _add(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Multiply the second operand by alpha."""
    a, b = node.args
    alpha = node.kwargs.get("alpha", 1)
    if alpha == 1:
        return _with_tensors(module, node)
    if not isinstance(b, fx.Node):
        return insert_before(node, node.target, (a, _product(b, alpha)))
    scaled = insert_before(node, aten.mul.Tensor, (b, alpha), "alpha")
    return insert_before(node, node.target, (a, scaled))


def _product(a: Any, b: Any) -> Any:
    return a * b


def _log_sigmoid(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return -softplus(-x): the exporter's log(sigmoid(x)) is -inf if sigmoid(x) underflows."""
    minus = insert_before(node, aten.neg.default, (node.args[0],), "minus")
    plus = insert_before(node, aten.softplus.default, (minus,), "plus")
    return insert_before(node, aten.neg.default, (plus,))


def _log_add_exp(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return max(a, b) + softplus(-|a - b|): log(exp(a) + exp(b)) is Inf from 89 on."""
    a, b = node.args
    call = partial(insert_before, node)
    distance = call(aten.abs.default, (call(aten.sub.Tensor, (a, b), "minus"),), "apart")
    minus = call(aten.neg.default, (distance,), "near")
    near = call(aten.softplus.default, (minus,), "plus")
    return call(aten.add.Tensor, (call(aten.maximum.default, (a, b), "most"), near))


def _random_relu(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return a leaky relu with the mean slope, which inference uses."""
    low, high = G.argument(node, 1, "lower", 1 / 8), G.argument(node, 2, "upper", 1 / 3)
    return clone_as(node, aten.leaky_relu.default, (node.args[0], (low + high) / 2))


def _attention(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Return an attention of rank 4, the rank of the exporter: [batch, heads, time, features]."""
    tensors, mask = [G.source(node, i) for i in range(3)], G.argument(node, 3, "attn_mask")
    ranks = {G.rank(t) for t in tensors}
    rank = G.rank(node)
    if ranks != {rank} or rank == 4:
        return None
    if rank < 4:
        lifted = [_lifted(node, t, rank, f"input{i}") for i, t in enumerate(tensors)]
        mask = _lifted(node, mask, rank, "mask") if mask is not None and G.rank(mask) == 3 else mask
        result = _attend(node, lifted, mask)
        result = insert_before(node, aten.squeeze.dim, (result, 1), "squeeze1" if rank == 2 else "")
        return result if rank == 3 else insert_before(node, aten.squeeze.dim, (result, 0))
    lead = G.shape(node)[: rank - 3]
    if sum(not isinstance(s, int) for s in lead) > 1 or (mask is not None and G.rank(mask) > 3):
        return None
    if any(not G.same_sizes(G.shape(t)[: rank - 3], lead) for t in tensors):
        return None
    flat = [
        insert_before(node, aten.flatten.using_ints, (t, 0, rank - 4), f"input{i}")
        for i, t in enumerate(tensors)
    ]
    sizes = [s if isinstance(s, int) else -1 for s in lead]
    return insert_before(node, aten.unflatten.int, (_attend(node, flat, mask), 0, sizes))


def _lifted(node: fx.Node, x: Argument, rank: int, part: str) -> fx.Node:
    batched = (
        x if rank == 3 else insert_before(node, aten.unsqueeze.default, (x, 0), f"{part}.batch")
    )
    return insert_before(node, aten.unsqueeze.default, (batched, 1), part)


def _attend(node: fx.Node, tensors: list[fx.Node], mask: Argument) -> fx.Node:
    rest = {k: v for k, v in node.kwargs.items() if k != "attn_mask"}
    product = insert_before(node, node.target, (*tensors, mask, *node.args[4:]), "product")
    product.kwargs = rest
    return G.infer(product)


RULES: Rules = {
    aten.mul.Tensor: _with_tensors,
    aten.div.Tensor: _with_tensors,
    **dict.fromkeys(_SCALAR, _with_tensors),
    aten.amax.default: _over_all,
    aten.amin.default: _over_all,
    aten.conv1d.default: _conv,
    aten.conv2d.default: _conv,
    aten.conv3d.default: _conv,
    aten.conv1d.padding: _conv,
    aten.conv2d.padding: _conv,
    aten.conv3d.padding: _conv,
    aten.conv_transpose1d.default: _conv_transpose,
    aten.conv_transpose2d.input: _conv_transpose,
    aten.conv_transpose3d.input: _conv_transpose,
    aten.convolution.default: _convolution,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.hardtanh.default: _clamp(-1.0, 1.0),
    aten.relu6.default: _clamp(0.0, 6.0),
    aten.clip.default: _clamp(None, None),
    aten.clamp.default: _clamp(None, None),
    aten.clamp_min.default: _clamp(None, None),
    aten.clamp_max.default: _clamp_max,
    aten.rsub.Scalar: _rsub,
    aten.pad.default: _pad,
    aten.rrelu.default: _random_relu,
    aten.log_sigmoid.default: _log_sigmoid,
    aten.logaddexp.default: _log_add_exp,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _add,
    aten.scaled_dot_product_attention.default: _attention,
    **CELL_RULES,
    **LOOKUP_RULES,
    **POOL_RULES,
    **PRODUCT_RULES,
    **MOVE_RULES,
    **SORT_RULES,
}
_ALWAYS = {t for t, rule in RULES.items() if rule in (_conv, _conv_transpose, _convolution)}


def _rewrite(module: fx.GraphModule) -> int:
    count = 0
    for node in G.calls(module.graph):
        rule = RULES.get(node.target)
        new = rule(module, node) if rule is not None else None
        if new is not None:
            G.replace(node, new)
            count += 1
    return count


def _leftover(module: fx.GraphModule) -> fx.Node | None:
    return next((n for n in module.graph.nodes if n.target in _ALWAYS), None)


canonicalize = GraphPass("canonicalize", _rewrite, _leftover)
