"""From a graph with parameters as attributes to an ExportedProgram, which torch.onnx translates.

Nothing is traced again: names, dynamic dimensions and order stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from qtool.backends.onnx.export.simplify_shapes import simplify_shapes
from qtool.core import graph as G
from qtool.core.graph import torch_ops

SCOPE = "qtool.node"
_OPAQUE = {torch.ops.aten.reshape.default: torch_ops.reshape}
"""Operators that the exporter would decompose, computing a size that the runtime can infer."""


def to_program(module: fx.GraphModule, graph: G.FloatGraph) -> ExportedProgram:
    """Return the lifted graph: attributes become inputs of the kind PARAMETER or BUFFER.

    Nodes carry their readable names as module scope, which the exporter copies to the ONNX file.
    """
    _forget_sizes(module)
    lifted, env = fx.Graph(), {}
    state: dict[str, torch.Tensor] = {}
    specs: list[InputSpec] = []
    attributes = _attributes(module)
    for target, (name, node) in attributes.items():
        holder = lifted.placeholder(f"p_{G.free_name(nn.Module(), name)}")
        holder.meta = {"val": G.value(node), G.NAME: name}
        data = G.tensor(module, node)
        kind = InputKind.PARAMETER if isinstance(data, nn.Parameter) else InputKind.BUFFER
        persistent = None if kind is InputKind.PARAMETER else True
        specs.append(InputSpec(kind, TensorArgument(holder.name), target, persistent))
        state[target] = data.cpu()
        env[target] = holder
    nodes: dict[fx.Node, fx.Node] = {}
    inputs = set(G.placeholders(module.graph))
    for node in module.graph.nodes:
        if node.op == "placeholder" and node not in inputs:
            continue  # None
        if node.op == "get_attr":
            nodes[node] = env[str(node.target)]
        elif node.op != "output":
            nodes[node] = lifted.node_copy(node, lambda n: nodes[n])
            nodes[node].target = _OPAQUE.get(node.target, node.target)
            nodes[node].meta = _with_scope(node)
        if node.op == "placeholder":
            specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(nodes[node].name), None))
    outputs = [nodes[n] for n in G.output_nodes(module.graph)]
    example = _without_none(graph.example)
    lifted.output(tuple(outputs))
    simplify_shapes(lifted)
    signature = ExportGraphSignature(
        specs, [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in outputs]
    )
    program = ExportedProgram(
        root={},
        graph=lifted,
        graph_signature=signature,
        state_dict=state,
        range_constraints=dict(graph.constraints),
        module_call_graph=[_call_entry(example, len(outputs))],
        example_inputs=example,
        constants={},
    )
    program._guards_code = []  # shapes were checked at capture; guards fail to parse here
    return program


def _forget_sizes(module: fx.GraphModule) -> None:
    """Clear run-time sizes of an earlier export, which torch would look for."""
    env = G.fake_mode(module.graph).shape_env
    if env is not None:
        env.pending_fresh_unbacked_symbols.clear()


def _with_scope(node: fx.Node) -> dict[str, Any]:
    """Return the metadata of a node with its name as module scope, which the exporter keeps."""
    name = G.name_of(node)
    return {**node.meta, "nn_module_stack": {name: (name, SCOPE)}}


def _attributes(module: fx.GraphModule) -> dict[str, tuple[str, fx.Node]]:
    attributes: dict[str, tuple[str, fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            attributes.setdefault(str(node.target), (G.name_of(node), node))
    return attributes


def _without_none(example: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Return the example; a flat tuple if some arguments are None, which a file cannot have."""
    leaves = pytree.tree_leaves(example)
    tensors = [x for x in leaves if x is not None]
    return example if len(tensors) == len(leaves) else (tuple(tensors), {})


def _call_entry(example: Any, outputs: int) -> ModuleCallEntry:
    in_spec: Any = pytree.tree_structure(example)
    out_spec: Any = pytree.tree_structure(tuple(range(outputs)))
    signature = ModuleCallSignature([], [], in_spec=in_spec, out_spec=out_spec)
    return ModuleCallEntry(fqn="", signature=signature)
