"""Names nodes after the modules of the user's model.

A call in a leaf module of torch.nn gets the module's path (`layer1.0.conv2`); any other call gets
the path of the module whose forward has it, and the operator (`layer1.0.add`). The second use of a
name gets `_2`, and so on.
"""

from __future__ import annotations

import copy
import keyword
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature

from qtool.core import graph as G
from qtool.core.value_names import unique

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


# Renames parameters whose names are not valid in generated Python code.
#
# torch writes a graph as Python code, each weight as an attribute of its modules. A module may be
# named `class` (a head in an nn.ModuleDict, say), or `graph`, an attribute of every GraphModule:
# such names get an underscore. Quotes and line breaks are replaced.


_TAKEN = frozenset(dir(fx.GraphModule)) - frozenset(dir(nn.Module))
_BREAKING = re.compile(r'["\\\r\n]')


def with_valid_names(program: ExportedProgram) -> ExportedProgram:
    """Return the program, with tensors renamed where their names are not valid."""
    signature = program.graph_signature
    targets = [s.target for s in signature.input_specs if s.target is not None]
    names = _renamed([*targets, *program.state_dict, *program.constants])
    if not names:
        return program

    def renamed(spec: Any) -> Any:
        return replace(spec, target=names[spec.target]) if spec.target in names else spec

    other = copy.copy(program)
    specs = (
        [renamed(s) for s in signature.input_specs],
        [renamed(s) for s in signature.output_specs],
    )
    other._graph_signature = ExportGraphSignature(*specs)
    other._state_dict = _keyed(program.state_dict, names)
    other._constants = _keyed(program.constants, names)
    return other


def _keyed(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in state.items()}


def _renamed(names: Iterable[str]) -> dict[str, str]:
    known = set(names)
    renames: dict[str, str] = {}
    for name in sorted(known):
        new = ".".join(map(_plain, name.split(".")))
        if new != name:
            renames[name] = unique(new, known | set(renames.values()))
    return renames


def _plain(part: str) -> str:
    reserved = keyword.iskeyword(part) or part in _TAKEN
    return f"{part}_" if reserved else _BREAKING.sub("_", part)
