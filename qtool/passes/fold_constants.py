"""Tensors computed from parameters and constants alone become stored tensors.

Examples are a part of a packed projection, a transposed or normalized matrix, a bias with a part
set to zero, a table looked up at fixed places. Their layers then have constant weights. A tensor
that no layer multiplies with is left to the exporter where it is made of sizes alone (a mask), or
would be stored many times larger.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch
from torch import fx, nn

from qtool.core import graph as G
from qtool.core.ops import data_inputs, row_of
from qtool.passes.graph_pass import GraphPass, first_match

MAX_ELEMENTS = 2**20  # always stored up to this size
aten = torch.ops.aten


def _foldable(module: fx.GraphModule) -> list[fx.Node]:
    """Return the calls on stored tensors alone that are worth storing, in graph order."""
    constant = _constant(module)
    multiplied = _multiplied(module, constant)
    foldable: dict[fx.Node, None] = {}
    for node in constant:
        sources = node.all_input_nodes
        stored = sources and all(n.op == "get_attr" or n in foldable for n in sources)
        if node in multiplied or (
            stored and _size(node) <= max(MAX_ELEMENTS, sum(map(_size, sources)))
        ):
            foldable[node] = None
    return list(foldable)


def _constant(module: fx.GraphModule) -> dict[fx.Node, None]:
    """Return the calls on stored tensors and numbers alone, in graph order."""
    constant: dict[fx.Node, None] = {}
    for node in G.calls(module.graph):
        several = isinstance(G.value(node), list | tuple)
        if (
            all(n.op == "get_attr" or n in constant for n in node.all_input_nodes)
            and all(isinstance(t, torch.Tensor) and _fixed(t) for t in _results(node))
            and not (several and any(u.target is not operator.getitem for u in node.users))
        ):
            constant[node] = None
    return constant


def _multiplied(module: fx.GraphModule, constant: Container[fx.Node]) -> set[fx.Node]:
    """Return the constants that a layer multiplies with, and their sources.

    Integer kernels need them stored, whatever their size and origin.
    """
    multiplied: set[fx.Node] = set()
    for node in reversed(list(G.calls(module.graph))):
        if node in multiplied:
            operands: list[Any] = node.all_input_nodes
        elif (row := row_of(node)) is not None and row.macs is not None:
            places = [at for at in (row.weight, *row.extra_weights, row.bias) if at is not None]
            operands = [
                *data_inputs(node),
                *(node.args[at] for at in places if at < len(node.args)),
            ]
        else:
            continue
        multiplied.update(n for n in operands if isinstance(n, fx.Node) and n in constant)
    return multiplied


def _results(node: fx.Node) -> list[Any]:
    value = G.value(node)
    return list(value) if isinstance(value, list | tuple) else [value]


def _size(node: fx.Node) -> int:
    return sum(t.numel() for t in _results(node))


def _fixed(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape)


def _rewrite(module: fx.GraphModule) -> int:
    folded: dict[str, fx.Node | list[fx.Node]] = {}
    count = 0
    for node in _foldable(module):
        if node._erased:  # one of several results, stored with them
            continue
        key = str((node.target, fx.node.map_arg((node.args, node.kwargs), _stored)))
        if key not in folded:
            folded[key] = _folded(module, node)
        results = folded[key]
        if isinstance(results, list):
            for user in list(node.users):
                G.replace(user, results[G.integer(user, 1)])
            node.graph.erase_node(node)
        else:
            G.replace(node, results)
        count += 1
    return count


def _stored(node: fx.Node) -> Any:
    """Return a key that two reads of one tensor share."""
    return f"<{node.target}>"


def _folded(module: fx.GraphModule, node: fx.Node) -> fx.Node | list[fx.Node]:
    """Store the result of a node; a list for several results."""
    sources, arguments = node.all_input_nodes, (node.args, node.kwargs)
    stored = [G.tensor(module, n) for n in sources]

    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        known = dict(zip(sources, values, strict=True))
        args, kwargs = fx.node.map_arg(arguments, known.__getitem__)
        with torch.no_grad():
            results = G.run_operator(node, args, kwargs)
        tensors = [results] if isinstance(results, torch.Tensor) else results
        return [t.clone(memory_format=torch.contiguous_format) for t in tensors]

    results = G.computed(run, *stored, like=_results(node))
    learned = any(isinstance(t, nn.Parameter) for t in stored)

    def store(result: torch.Tensor, name: str) -> fx.Node:
        trained = learned and result.is_floating_point()
        data = G.as_parameter(result) if trained else result
        return G.add_tensor(module, next(iter(module.graph.nodes)), data, name)

    name = G.name_of(node)
    if isinstance(G.value(node), torch.Tensor):
        return store(results[0], name)
    return [store(t, f"{name}.{i}") for i, t in enumerate(results)]


fold_constants = GraphPass(
    "fold_constants",
    _rewrite,
    lambda m: next(iter(_foldable(m)), None),
)


# Operators without effect at inference are removed: dropout, copies, full slices, same casts.


def _always(node: fx.Node) -> bool:
    return True


def _inactive_dropout(node: fx.Node) -> bool:
    return not node.args[2] or node.args[1] in (0, 0.0)


def _same_meta(node: fx.Node) -> bool:
    """Return whether shape, dtype and device are those of the input."""
    x = node.args[0]
    if not isinstance(x, fx.Node):
        return False
    a, b = G.value(x), G.value(node)
    return G.same_sizes(a.shape, b.shape) and a.dtype == b.dtype and a.device == b.device


def _full_slice(node: fx.Node) -> bool:
    start, end, step = (G.argument(node, i, k) for i, k in ((2, "start"), (3, "end"), (4, "step")))
    return start in (None, 0) and end in (None, sys.maxsize) and step in (None, 1)


def _adds_nothing(node: fx.Node) -> bool:
    """Match x + 0, with which `sum` begins; 0 + x is the same in ATen."""
    return node.args[1] in (0, 0.0) and _same_meta(node)


def _changes_nothing(node: fx.Node) -> bool:
    return node.args[1] in (1, 1.0) and _same_meta(node)


IDENTITIES: Mapping[fx.node.Target, Callable[[fx.Node], bool]] = {
    aten.dropout.default: _inactive_dropout,
    aten.feature_dropout.default: _inactive_dropout,
    aten.alpha_dropout.default: _inactive_dropout,
    aten.feature_alpha_dropout.default: _inactive_dropout,
    aten.clone.default: _always,
    aten.alias.default: _always,
    aten.detach.default: _always,
    aten.contiguous.default: _always,
    aten.lift_fresh_copy.default: _always,
    aten._to_copy.default: _same_meta,
    aten.to.dtype: _same_meta,
    aten.type_as.default: _same_meta,
    aten.reshape.default: _same_meta,
    aten.expand.default: _same_meta,
    aten.squeeze.dim: _same_meta,
    aten.squeeze.dims: _same_meta,
    aten.slice.Tensor: _full_slice,
    aten.add.Tensor: _adds_nothing,
    aten.sub.Tensor: _adds_nothing,
    aten.mul.Tensor: _changes_nothing,
    aten.div.Tensor: _changes_nothing,
}


def _is_identity(node: fx.Node) -> bool:
    test = IDENTITIES.get(node.target)
    return test is not None and isinstance(node.args[0], fx.Node) and test(node)


def _views_as_reshapes(module: fx.GraphModule) -> None:
    """Replace views, which need contiguous inputs: without copies, inputs may not be contiguous."""
    for node in G.calls(module.graph):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default


def _remove(module: fx.GraphModule) -> int:
    _views_as_reshapes(module)
    identities = [n for n in G.calls(module.graph) if _is_identity(n)]
    for node in identities:
        G.replace(node, G.source(node))
    return len(identities)


remove_identity = GraphPass("remove_identity", _remove, first_match(_is_identity))
