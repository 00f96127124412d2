"""Makes an exported graph functional with rewrite rules, without tracing it again.

`run_decompositions({})` traces a program twice more, which takes longer than capturing it. It
changes little in most graphs: batch norms, reshapes, transposes, casts, chunks, inactive dropouts,
regions without gradients, in-place operators on new results. The rules here give the same nodes. A
graph with anything else is left to torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from qtool.core import graph as G

aten = torch.ops.aten
Edit = Callable[[], None]
Rule = Callable[[fx.Node], Edit | None]
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def make_functional(module: fx.GraphModule) -> bool:
    """Rewrite the graph in place if rules cover all of it, and return whether they do.

    Otherwise only regions without gradients are inlined.
    """
    for node in G.calls(module.graph):
        if node.target is _REGION and all(u.target is operator.getitem for u in node.users):
            _inline(module, node)
    mode = G.fake_mode(module.graph)
    # checking contiguity of symbolic sizes must not specialize a dynamic dimension
    guards = mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()
    edits: list[Edit] = []
    with guards:
        for node in G.calls(module.graph):
            rule = RULES.get(node.target) or (_write if _is_write(node) else None)
            if rule is None and not _is_unchanged(node):
                return False
            if rule is not None:
                edit = rule(node)
                if edit is None:
                    return False
                edits.append(edit)
        for edit in edits:
            edit()
    return True


def _is_write(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_unchanged(node: fx.Node) -> bool:
    """Return whether tracing leaves the operator unchanged; it decomposes what may alias."""
    if node.target is operator.getitem or node.target in _SIZES:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target in _TRACED:
        return False
    return not _composite_alias(node.target)


def _composite_alias(target: torch._ops.OpOverload) -> bool:
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), _COMPOSITE)
    return (composite and _aliases(target)) or torch.Tag.maybe_aliasing_or_mutating in target.tags


def _aliases(target: torch._ops.OpOverload) -> bool:
    return any(a.alias_info is not None for a in target._schema.arguments)


def _replacement(node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> Edit:
    """Return the edit that replaces the operator and keeps its first argument.

    That argument is read when the edit runs, since an earlier edit may change it.
    """

    def edit() -> None:
        node.target, node.args, node.kwargs = target, (node.args[0], *args), kwargs

    return edit


def _removal(node: fx.Node) -> Edit:
    return lambda: G.replace(node, G.source(node))


def _batch_norm(node: fx.Node) -> Edit | None:
    """Replace a BatchNorm in eval mode.

    Its arguments: x, weight, bias, mean, variance, training, momentum, epsilon, cudnn.
    """
    _, weight, bias, mean, variance, training, momentum, epsilon = node.args[:8]
    if training or mean is None or variance is None:
        return None

    def edit() -> None:
        arguments = (node.args[0], weight, bias, mean, variance, momentum, epsilon)
        with node.graph.inserting_before(node):
            norm = node.graph.call_function(
                aten._native_batch_norm_legit_no_training.default, arguments
            )
        norm.meta = dict(node.meta)
        empty = G.value(node).new_empty(0)
        norm.meta["val"] = (G.value(node), empty, empty)
        node.target, node.args, node.kwargs = operator.getitem, (norm, 0), {}

    return edit


def _dropout(node: fx.Node) -> Edit | None:
    return None if node.args[2] else _replacement(node, aten.clone.default)


def _contiguous(node: fx.Node) -> Edit | None:
    if len(node.args) > 1 or node.kwargs:
        return None
    if G.value(G.source(node)).is_contiguous():
        return _removal(node)
    layout = {"memory_format": torch.contiguous_format}
    return _replacement(node, aten.clone.default, **layout)


def _cast(node: fx.Node) -> Edit | None:
    before, after = G.value(G.source(node)), G.value(node)
    same_place = before.device == after.device and before.layout == after.layout
    if not same_place or node.kwargs.get("memory_format") is not None or True in node.args[2:]:
        return None
    if before.dtype == after.dtype:
        return _removal(node)
    positional = G.argument(node, 1, "device") if node.target is aten.to.device else None
    device = positional or node.kwargs.get("device")
    options = {"dtype": after.dtype} | ({"device": device} if device is not None else {})
    return _replacement(node, aten._to_copy.default, **options)


def _inline(module: fx.GraphModule, call: fx.Node) -> None:
    """Replace a region without gradients by its nodes: nothing here has gradients."""
    region = module.get_submodule(str(call.args[1].target))  # type: ignore[union-attr]
    assert isinstance(region, fx.GraphModule)
    inputs = region.graph.find_nodes(op="placeholder")
    known: dict[fx.Node, Any] = dict(zip(inputs, call.args[2:], strict=True))
    with call.graph.inserting_before(call):
        results: Any = call.graph.graph_copy(region.graph, known)
    for user in list(call.users):
        G.replace(user, results[user.args[1]])
    call.graph.erase_node(call)


def _reshape(node: fx.Node) -> Edit | None:
    sizes = node.args[1]
    if G.value(G.source(node)).is_contiguous():
        return _replacement(node, aten.view.default, sizes)
    return _view_or_copy(node, _whole_sizes(node, sizes))


def _view_or_copy(node: fx.Node, sizes: list[Any]) -> Edit | None:
    """Replace by a view, of a copy where strides need one, if each size is known."""
    x = G.value(G.source(node))
    can_view = None if None in sizes else x.is_contiguous() or _can_view(x, G.shape(node))
    if can_view is None:
        return None

    def edit() -> None:
        data, target = node.args[0], aten.view.default
        if not can_view:
            layout: dict[str, Any] = {"memory_format": torch.contiguous_format}
            with node.graph.inserting_before(node):
                data = node.graph.call_function(aten.clone.default, (data,), layout)
            data.meta = {**node.meta, "val": aten.clone.default(x, **layout)}
            target = aten._unsafe_view.default
        node.target, node.args = target, (data, [_size(node, s) for s in sizes])
        node.kwargs = {}

    return edit


def _can_view(x: torch.Tensor, shape: Any) -> bool | None:
    """Return whether a tensor has a view of a shape; None if that depends on data."""
    try:
        aten.view.default(x, shape)
    except GuardOnDataDependentSymNode:
        return None
    except (RuntimeError, ValueError):  # the strides do not allow it
        return False
    return True


def _whole_sizes(node: fx.Node, sizes: Any) -> list[Any]:
    """Return sizes with a number, a node, or an input's dimension in place of -1; None in place of
    -1 for another size."""
    shape = G.shape(node)
    return [
        _size_source(node.graph, n) if s == -1 else s for s, n in zip(sizes, shape, strict=True)
    ]


def _sources(node: fx.Node) -> list[Any]:
    """Return each size of the result as a number or an input's dimension, or None."""
    return [_size_source(node.graph, size) for size in G.shape(node)]


def _sized(target: Any) -> Rule:
    """Return the rule that replaces by `target` with the sizes of the result, if each is known."""

    def rule(node: fx.Node) -> Edit | None:
        sources = _sources(node)
        if None in sources:
            return None

        def edit() -> None:
            sizes = [_size(node, source) for source in sources]
            node.target, node.args, node.kwargs = target, (node.args[0], sizes), {}

        return edit

    return rule


def _chunk(node: fx.Node) -> Edit | None:
    """Replace by a split, if the number of elements is known."""
    parts, axis = G.argument(node, 1, "chunks"), G.argument(node, 2, "dim") or 0
    size = G.shape(G.source(node))[axis]
    if not isinstance(size, int) or not size:
        return None
    return _replacement(node, aten.split.Tensor, -(-size // parts), axis)


def _dropout_in_place(node: fx.Node) -> Edit | None:
    return None if node.args[2] else _removal(node)


def _flatten(node: fx.Node) -> Edit | None:
    if G.same_sizes(G.shape(G.source(node)), G.shape(node)):
        return _removal(node)
    return _view_or_copy(node, _sources(node))


def _size_source(graph: fx.Graph, size: Any) -> int | tuple[fx.Node, int] | None:
    """Return a number, or the input and dimension that have a symbolic size, or None."""
    if isinstance(size, int):
        return size
    for node in G.placeholders(graph):
        for axis, dim in enumerate(getattr(G.value(node), "shape", ())):
            if isinstance(dim, torch.SymInt) and str(dim) == str(size):
                return node, axis
    return None


def _size(node: fx.Node, source: Any) -> Any:
    """Return a number or node as it is, and the node of an input's size, which is inserted behind
    the inputs if there is none."""
    if not isinstance(source, tuple):
        return source
    tensor, axis = source
    for user in tensor.users:
        if user.target is aten.sym_size.int and user.args == (tensor, axis):
            return user
    with node.graph.inserting_after(G.placeholders(node.graph)[-1]):
        size = node.graph.call_function(aten.sym_size.int, (tensor, axis))
    size.meta = {"val": G.shape(tensor)[axis]}
    return size


def _write(node: fx.Node) -> Edit | None:
    """Replace x.relu_() by x.relu(), if x owns its memory and has no view."""
    target: Any = node.target
    name = target._schema.name.removesuffix("_")
    packet = getattr(aten, name.removeprefix("aten::"), None)
    plain = getattr(packet, target._overloadname, None)
    x = node.args[0] if node.args else None
    if plain is None or not isinstance(x, fx.Node) or not _is_fresh(x):
        return None
    if sum(a.alias_info is not None for a in target._schema.arguments) != 1:
        return None
    before, after = G.value(x), G.value(node)
    if before.dtype != after.dtype or not G.same_sizes(before.shape, after.shape):
        return None
    if any(_may_alias(user) for user in x.users if user < node):
        return None

    def edit() -> None:
        node.target = plain
        x.replace_all_uses_with(node, delete_user_cb=lambda user: user > node)

    return edit


def _is_fresh(node: fx.Node) -> bool:
    """Return whether a value owns its memory: not an input, a weight, or a view."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target is aten.batch_norm.default or _is_write(node):  # handled by rules
        return True
    return not _may_alias(node)


def _may_alias(node: fx.Node) -> bool:
    """Return whether, by the schema, the result may share the memory of an argument."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return _aliases(node.target) or torch.Tag.maybe_aliasing_or_mutating in node.target.tags


_TRACED = (aten.lift_fresh_copy.default, aten.alias.default)
"""Tracing changes these, although their schemas have no alias."""
_SIZES = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
)
"""Arithmetic of sizes, and what is asserted of them."""
_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled

RULES: Mapping[Any, Rule] = {
    aten.batch_norm.default: _batch_norm,
    aten.broadcast_to.default: _sized(aten.expand.default),
    aten.chunk.default: _chunk,
    aten.contiguous.default: _contiguous,
    aten.dropout.default: _dropout,
    aten.dropout_.default: _dropout_in_place,
    aten.expand_as.default: _sized(aten.expand.default),
    aten.flatten.using_ints: _flatten,
    aten.mT.default: lambda node: _replacement(node, aten.transpose.int, -2, -1),
    aten.reshape.default: _reshape,
    aten.reshape_as.default: lambda node: _view_or_copy(node, _sources(node)),
    aten.swapaxes.default: lambda node: _replacement(node, aten.transpose.int, *node.args[1:]),
    aten.to.device: _cast,
    aten.to.dtype: _cast,
    aten.to.dtype_layout: _cast,
    aten.unflatten.int: _sized(aten.view.default),
    aten.view_as.default: _sized(aten.view.default),
}
