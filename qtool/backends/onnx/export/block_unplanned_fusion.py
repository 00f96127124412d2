"""Workaround for ONNX Runtime: fusions that contradict the plan.

Runtime: ONNX Runtime, seen in 1.31.1, the QDQ fusions and the fusion of activations.
Problem: the runtime computes in integers any operator between DequantizeLinear and QuantizeLinear
that it has an integer kernel for, also where the plan keeps it in float, and quantizes the float
weights of a layer for that. It fuses a clamp of float results into a float layer, and the transpose
of a Gemm into the Gemm, before it looks for integer kernels. It moves the quantization of a maximum
pool in front of the pool, whose kernel on codes is ten times slower where no integer convolution is
next to it.
Rewrite: an operator that changes nothing (`torch_ops.idle`) between the two.
"""

from __future__ import annotations

import torch
from torch import fx

from qtool.backends.onnx.operator_rows import ON_CODES
from qtool.backends.onnx.operators import CUSTOM_FORMS
from qtool.core import graph as G
from qtool.core.graph import torch_ops
from qtool.core.graph.file_parts import part_kind
from qtool.core.ops import Role, data_inputs, row_of
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.targets import Target

aten = torch.ops.aten
_POOL = "max_pool"
_TRANSPOSES = {aten.t.default, aten.transpose.int, aten.permute.default}
_FUSED = frozenset(ON_CODES.values())
"""Operators of unchanged ONNX subgraphs that the runtime computes in integers, also in forms that
its integer kernels do not support."""


def block_unplanned_fusion(module: fx.GraphModule, plan: QuantPlan, target: Target) -> None:
    """Insert idle operators into a QDQ graph where the runtime would fuse unplanned, in place."""
    fusible = [d for d in plan.nodes if d.op in target.file.implicit_fusions]
    floats = {d.node for d in fusible if d.execution is Execution.FLOAT}
    integer = [d for d in plan.nodes if d.execution is Execution.INTEGER and d.output is None]
    results = {d.node for d in integer if d.op in target.file.implicit_fusions}
    pools = {d.node for d in plan.nodes if d.op == _POOL and d.execution is Execution.FLOAT}
    products = {d.node for d in integer} if target.file.implicit_fusions else set[str]()
    for node in G.calls(module.graph):
        is_custom = node.target in CUSTOM_FORMS
        if target.file.implicit_fusions and (is_custom or part_kind(node) in _FUSED):
            _idle_inputs(node)
        stored = any(n.target is torch_ops.dequantize_once for n in node.all_input_nodes)
        fused = (stored or G.name_of(node) in floats) and _reads_codes_alone(node)
        if fused or (target.file.implicit_fusions and G.name_of(node) in pools):
            _idle_before(node, [u for u in node.users if _quantizes(u)])
        elif G.name_of(node) in results:
            _idle_before(node, [u for u in node.users if _is_clamp(u) and not _quantizes(u)])
        if G.name_of(node) in products and node.target is aten.linear.default:
            _idle_before(node, [u for u in node.users if u.target in _TRANSPOSES])


def _idle_inputs(node: fx.Node) -> None:
    """Insert idle operators between dequantized values and `node`, a subgraph or custom operator.

    The runtime optimizes inside of it, too: a MatMul there on a dequantized weight would become a
    product that rounds its other input.
    """
    for source in node.all_input_nodes:
        if source.target is torch_ops.dequantize:
            name = f"{G.name_of(node)}.{G.name_of(source)}"
            idle = G.add_call(node, torch_ops.idle, (source,), name, node)
            node.replace_input_with(source, idle)


def _reads_codes_alone(node: fx.Node) -> bool:
    sources = data_inputs(node)  # nothing is fused if one is a number or a stored float
    return all(isinstance(n, fx.Node) and n.target is torch_ops.dequantize for n in sources)


def _idle_before(node: fx.Node, readers: list[fx.Node]) -> None:
    if not readers:
        return
    after = G.add_call(node.next, torch_ops.idle, (node,), G.name_of(node), node, node)
    for reader in readers:
        reader.replace_input_with(node, after)


def _quantizes(user: fx.Node) -> bool:
    """Return whether `user` quantizes, or is a clamp before that, which would be fused as well."""
    readers = list(user.users) if _is_clamp(user) else [user]
    return any(r.target is torch_ops.quantize for r in readers)


def _is_clamp(node: fx.Node) -> bool:
    row = row_of(node) if node.op == "call_function" else None
    return row is not None and row.role is Role.CLIP
