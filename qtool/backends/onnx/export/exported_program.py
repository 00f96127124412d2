"""From a graph with parameters as attributes to an ExportedProgram, which torch.onnx translates.

Nothing is traced again: names, dynamic dimensions and order stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

from qtool.core import graph as G
from qtool.core.graph import torch_ops

SCOPE = "qtool.node"
_OPAQUE = {torch.ops.aten.reshape.default: torch_ops.reshape}
"""Operators that the exporter would decompose, computing a size that the runtime can infer."""

_aten = torch.ops.aten

Size = int | torch.SymInt


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
    _simplify_shapes(lifted)
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


# A model of dynamic batch and length computes its sizes at each view, and ONNX would need four
# small nodes for each of them, a third of all nodes of a language model.


def _simplify_shapes(graph: fx.Graph) -> None:
    """Simplify the sizes of a graph about to be written, in place, and remove unused nodes.

    A size that has to be computed is computed once.
    """
    first: dict[str, fx.Node] = {}
    for node in graph.nodes:
        if isinstance(size := G.value(node), torch.SymInt) and node.op == "call_function":
            node.replace_all_uses_with(first.setdefault(str(size), node))
        find = _STATIC_SIZES.get(node.target)
        if find is None or all(isinstance(size, int) for size in node.args[1]):
            continue
        after = G.shape(node)
        sizes: Sequence[Size] | None = find(G.shape(node.args[0]), after)
        if sizes is None:  # -1 for a size that is fixed says less
            pairs = zip(node.args[1], after, strict=True)
            sizes = [new if isinstance(new, int) else size for size, new in pairs]
        node.args = (node.args[0], sizes, *node.args[2:])
    graph.eliminate_dead_code()


def _reshaped(before: Sequence[Size], after: Sequence[Size]) -> list[int] | None:
    """Return 0 for each size of the input in its place, -1 for one other size; None for more."""
    if 0 in after:  # 0 would copy the size of the input
        return None
    sizes = [
        size if isinstance(size, int) else 0 if _same(size, axis, before) else -1
        for axis, size in enumerate(after)
    ]
    return sizes if sizes.count(-1) < 2 else None


def _expanded(before: Sequence[Size], after: Sequence[Size]) -> list[int] | None:
    """Return -1 for each size of the input; None if another size is computed."""
    new = len(after) - len(before)
    if not all(isinstance(s, int) or _same(s, i - new, before) for i, s in enumerate(after)):
        return None
    return [size if isinstance(size, int) else -1 for size in after]


def _same(size: Size, axis: int, before: Sequence[Size]) -> bool:
    return 0 <= axis < len(before) and str(before[axis]) == str(size)


_STATIC_SIZES: Mapping[Any, Callable[[Sequence[Size], Sequence[Size]], list[int] | None]] = {
    torch_ops.reshape: _reshaped,
    _aten.expand.default: _expanded,
}
