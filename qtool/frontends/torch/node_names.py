"""Names nodes after the modules of the user's model.

A call in a leaf module of torch.nn gets the module's path (`layer1.0.conv2`); any other call gets
the path of the module whose forward has it, and the operator (`layer1.0.add`). The second use of a
name gets `_2`, and so on.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx

from qtool.core import graph as G
from qtool.core.unique_names import unique

# modules of torch.nn with submodules or many operators
_COMPOSED = ("torch.nn.modules.transformer.", "torch.nn.modules.activation.MultiheadAttention")


def assign_names(graph: fx.Graph, inputs: Mapping[fx.Node, str]) -> None:
    """Name every node of a newly captured graph (in `meta`).

    Args:
        graph: changed in place.
        inputs: names of the placeholders.
    """
    taken = {G.OUTPUT}
    for node in graph.nodes:
        if node.op == "output":
            continue
        name = unique(inputs.get(node) or _wanted(node), taken)
        taken.add(name)
        node.meta[G.NAME] = name


def _wanted(node: fx.Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return f"{G.name_of(node.args[0])}.{node.args[1]}"
    path, kind = _module_of(node)
    single = kind.startswith("torch.nn.modules.") and not kind.startswith(_COMPOSED)
    if path and single and _computes(node):
        return path
    op = _operator_name(node)
    return f"{path}.{op}" if path else op


def _computes(node: fx.Node) -> bool:
    """Return whether a node computes tensors from tensors; others must not take a layer's name."""
    results = G.value(node)
    tensors = results if isinstance(results, list | tuple) else [results]
    returns_tensors = all(isinstance(t, torch.Tensor) for t in tensors)
    return returns_tensors and any(
        isinstance(G.value(n), torch.Tensor) for n in node.all_input_nodes
    )


def _module_of(node: fx.Node) -> tuple[str, str]:
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return "", ""
    path, kind = list(stack.values())[-1]
    if str(path).startswith("_empty_nn_module_stack"):  # torch.export, for calls it adds itself
        return "", ""
    return str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _operator_name(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target.overloadpacket.__name__).strip("_")
    return str(getattr(node.target, "__name__", node.name))
