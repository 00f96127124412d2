"""From the fake-quantized graph to a QDQ graph in torch: integer weights, quantize, dequantize.

Each quant point becomes the nodes of the ONNX file: quantize and dequantize for an activation,
integer codes and dequantize for a weight or bias. Operators that the target requires on codes (a
pad) move between the two. Linear layers with another form of integer weights (dynamic, weight-only)
become operators of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from qtool.backends.onnx.export.linear_forms import lower_linears
from qtool.backends.onnx.export.torch_exporter import fuse
from qtool.backends.onnx.operator_rows import ON_CODES
from qtool.backends.onnx.operators import CUSTOM_FORMS
from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.graph import torch_ops
from qtool.core.graph.file_parts import part_kind
from qtool.core.ops import Op, Role, data_inputs, row_of
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.types import SharedWith
from qtool.passes.flatten_linear import stays_flat
from qtool.passes.pads import widen_channels
from qtool.passes.rewrite_rules import leading_sizes
from qtool.planning.fake_quantize import QuantPoint
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.targets import Target

_ANY_RANK = frozenset({torch_ops.linear_nbits, torch_ops.dynamic_linear})
_RESHAPE = torch.ops.aten.reshape.default


@dataclass
class _Lowering:
    """A graph while it is lowered.

    Attributes:
        module: the graph.
        plan: plan of the graph.
        target: target of the plan.
        scales: (root point, scale) -> nodes of scale and zero point.
        stored: (attribute, scales) -> node of its codes.
    """

    module: fx.GraphModule
    plan: QuantPlan
    target: Target
    scales: dict[tuple[str, bytes], tuple[fx.Node, fx.Node]]
    stored: dict[tuple[str, bytes], fx.Node]

    def parameters(
        self, point: str, params: QuantParams, anchor: fx.Node
    ) -> tuple[fx.Node, fx.Node]:
        """Return scale and zero point as nodes; points of equal parameters share the nodes."""
        root = self.plan.root(point)
        key = (root, params.scale.numpy().tobytes())
        if key not in self.scales:
            head = next(iter(anchor.graph.nodes))
            zero = params.zero_point.to(torch_dtype(params.qtype))
            self.scales[key] = (
                G.add_tensor(self.module, head, params.scale, value_names.scale(point)),
                G.add_tensor(self.module, head, zero, value_names.zero_point(point)),
            )
        return self.scales[key]


def lower_to_qdq(quantized: fx.GraphModule, plan: QuantPlan, target: Target) -> fx.GraphModule:
    """Return the QDQ graph of a calibrated graph, on the CPU; it computes as the ONNX file."""
    module = G.clone(quantized)
    lower_linears(module, plan, target)
    _restore_rank(module)
    lowering = _Lowering(module, plan, target, {}, {})
    for node in list(module.graph.nodes):
        called = G.submodule(module, node)
        if isinstance(called, QuantPoint):
            _lower_point(lowering, node, called)
    stored = {d.node for d in plan.nodes if d.execution is Execution.WEIGHTS}
    for node in G.calls(module.graph):
        row = row_of(node) if G.name_of(node) in stored else None
        if row is not None and row.from_codes is not None:
            _from_codes(node, row)
        elif row is not None and not (
            target.file.dequantizes_once and _dequantize_once(module, node, row)
        ):
            _split_bias(module, node, row)
    block_unplanned_fusion(module, plan, target)
    G.finish(module)
    widen_channels(module, {d.node: d.channels for d in plan.nodes if d.channels})
    return fuse(module, target)


def _dequantized_weights(node: fx.Node, row: Op) -> list[fx.Node]:
    """Return the dequantized weights of a layer whose kernel takes floats."""
    at = [i for i in (row.weight, *row.extra_weights) if i is not None and i < len(node.args)]
    weights = [node.args[i] for i in at]
    return [w for w in weights if isinstance(w, fx.Node) and w.target is torch_ops.dequantize]


def _dequantize_once(module: fx.GraphModule, node: fx.Node, row: Op) -> bool:
    """Write the weights of a layer as a product that the runtime computes when it loads the file.

    Returns:
        False where codes have a zero point; nothing is changed then.
    """
    weights = _dequantized_weights(node, row)
    if any(G.tensor(module, G.source(w, 2)).any() for w in weights):
        return False
    for weight in weights:
        codes, scale, _, axis = weight.args
        assert isinstance(codes, fx.Node)
        assert isinstance(scale, fx.Node)
        assert axis is None or isinstance(axis, int)
        shaped = torch_ops.per_channel(G.tensor(module, scale), axis, G.rank(codes))
        column = G.add_tensor(module, weight, shaped, G.name_of(scale))
        args = (codes, column)
        G.replace(
            weight, G.add_call(weight, torch_ops.dequantize_once, args, G.name_of(weight), weight)
        )
    return bool(weights)


def _split_bias(module: fx.GraphModule, node: fx.Node, row: Op) -> None:
    """Add the bias behind the operator: between DQ and Q the runtime would round it, too."""
    at = row.bias
    bias = None if at is None else G.argument(node, at, "bias")
    if at is None or not isinstance(bias, fx.Node):
        return
    name = G.name_of(node)
    shape = [-1] + [1] * (G.rank(node) - 2)
    (data,) = G.computed(lambda values: [values.reshape(shape)], G.tensor(module, bias))
    column = G.add_tensor(module, node, G.as_parameter(data), G.name_of(bias))
    without_bias = (*node.args[:at], None, *node.args[at + 1 :])
    product = G.add_call(node, node.target, without_bias, name, node)
    G.replace(node, G.add_call(node, torch.ops.aten.add.Tensor, (product, column), name, node))


def _from_codes(node: fx.Node, row: Op) -> None:
    """Apply the operator to the codes, so that they are never dequantized as a whole."""
    at = row.weight
    assert at is not None
    weight = node.args[at]
    assert isinstance(weight, fx.Node)
    args = (*node.args[:at], *weight.args[:2], *node.args[at + 1 :])
    G.replace(node, G.add_call(node, row.from_codes, args, G.name_of(node), node))


def _lower_point(lowering: _Lowering, node: fx.Node, point: QuantPoint) -> None:
    params = point.params
    assert params is not None, f"{point.point} has no parameters"
    source = node.args[0]
    assert isinstance(source, fx.Node)
    params = QuantParams(params.qtype, params.scale.cpu(), params.zero_point.cpu(), params.axis)
    with torch.no_grad():
        if source.op == "get_attr":
            result = _constant(lowering, node, source, point.point, params)
        elif (codes := _codes(lowering, source, node, point.point, params)) is not None:
            result = codes
        else:
            result = _activation(lowering, node, source, point.point, params)
    G.replace(node, result)


def _constant(
    lowering: _Lowering, node: fx.Node, source: fx.Node, name: str, params: QuantParams
) -> fx.Node:
    key = (str(source.target), params.scale.numpy().tobytes())
    if key not in lowering.stored:  # a module called twice keeps one copy of its weights
        weight = G.tensor(lowering.module, source)
        (codes,) = G.computed(lambda w: [params.quantize(w.cpu().float())], weight)
        lowering.stored[key] = G.add_tensor(lowering.module, node, codes, value_names.codes(name))
    stored = lowering.stored[key]
    scale, zero = lowering.parameters(name, params, node)
    args = (stored, scale, zero, params.axis)
    return G.add_call(node, torch_ops.dequantize, args, value_names.dequantize(name), source, node)


def _activation(
    lowering: _Lowering, node: fx.Node, source: fx.Node, name: str, params: QuantParams
) -> fx.Node:
    scale, zero = lowering.parameters(name, params, node)
    into, back = torch_ops.quantize, torch_ops.dequantize
    codes = G.add_call(node, into, (source, scale, zero), value_names.quantize(name), source)
    args = (codes, scale, zero, None)
    return G.add_call(node, back, args, value_names.dequantize(name), source, node)


def _codes(
    lowering: _Lowering, source: fx.Node, node: fx.Node, point: str, params: QuantParams
) -> fx.Node | None:
    """Return `source` rewritten on codes if the target requires it: a pad, a change of scale."""
    row = row_of(source)
    if row is None or row.key not in lowering.target.file.passthrough_on_codes:
        return None
    if lowering.plan.root(point) == point:  # parameters of its own: computed in float
        return None
    before = source.args[0]
    shared = isinstance(lowering.plan.point(point).spec, SharedWith)
    if not shared or not isinstance(before, fx.Node) or before.target is not torch_ops.dequantize:
        return None
    codes, name = before.args[0], G.name_of(source)
    assert isinstance(codes, fx.Node)
    if row.on_codes is not None:
        operator, operands = row.on_codes(source, codes, int(params.zero_point))
        codes = G.add_call(node, operator, operands, name, source)
    scale, zero = lowering.parameters(point, params, node)
    args = (codes, scale, zero, None)
    return G.add_call(node, torch_ops.dequantize, args, value_names.dequantize(name), source, node)


# Layers of a graph have two dimensions, as integer Gemms do. Those on weights in blocks and those
# that quantize their input at run time need no reshape before and behind them.


def _restore_rank(module: fx.GraphModule) -> None:
    """Remove the reshapes around such layers where all readers reshape the result, in place."""
    for node in G.calls(module.graph):
        flat = node.args[0] if node.target in _ANY_RANK else None
        if not isinstance(flat, fx.Node) or flat.target is not _RESHAPE:
            continue
        chain = _chain(node)
        readers = list(chain[-1].users)
        if readers and all(user.target is _RESHAPE for user in readers):
            unflattened = _unflattened(flat, readers)
            if unflattened is not None:
                _rebuild(chain, unflattened)


def _unflattened(flat: fx.Node, readers: list[fx.Node]) -> fx.Node | None:
    """Return the tensor before flattening, None if the layer cannot read it.

    If readers split the leading dimensions again, only the last dimensions (heads of an attention)
    stay flattened.
    """
    x = flat.args[0]
    assert isinstance(x, fx.Node)
    width, shapes = G.shape(flat)[-1], [G.shape(reader) for reader in readers]
    if G.rank(x) > 2 and str(G.shape(x)[-1]) == str(width):
        return x
    count = len(shapes[0]) - 1
    before = G.shape(x)[:count]
    if not 1 < count < G.rank(x) or not all(G.same_sizes(s[:-1], before) for s in shapes):
        return None
    sizes = [*leading_sizes(flat, x, count), width]
    return G.add_call(flat, _RESHAPE, (x, sizes), f"{G.name_of(flat)}.deep", flat)


def _chain(node: fx.Node) -> list[fx.Node]:
    """Return the layer and the operators behind it along its last dimension.

    These are further such layers and elementwise operators, while each has one reader.
    """
    chain, readers = [node], list(node.users)
    while len(readers) == 1 and (readers[0].target in _ANY_RANK or stays_flat(readers[0])):
        chain.append(readers[0])
        readers = list(chain[-1].users)
    return chain


def _rebuild(chain: list[fx.Node], x: fx.Node) -> None:
    result = x
    for node in chain:
        kwargs = node.kwargs
        result = G.add_call(node, node.target, (result, *node.args[1:]), G.name_of(node), node)
        result.kwargs = kwargs
    for reader in list(chain[-1].users):
        reader.args = (result, *reader.args[1:])
        if str(G.shape(reader)) == str(G.shape(result)):
            G.replace(reader, result)
    for node in reversed(chain):
        node.graph.erase_node(node)


# Workaround for ONNX Runtime: fusions that contradict the plan.
#
# Runtime: ONNX Runtime, seen in 1.31.1, the QDQ fusions and the fusion of activations.
# Problem: the runtime computes in integers any operator between DequantizeLinear and
# QuantizeLinear that it has an integer kernel for, also where the plan keeps it in float, and
# quantizes the float weights of a layer for that. It fuses a clamp of float results into a float
# layer, and the transpose of a Gemm into the Gemm, before it looks for integer kernels. It moves
# the quantization of a maximum pool in front of the pool, whose kernel on codes is ten times
# slower where no integer convolution is next to it.
# Rewrite: an operator that changes nothing (`torch_ops.idle`) between the two.


aten = torch.ops.aten
_POOL = "max_pool"
_TRANSPOSES = {aten.t.default, aten.transpose.int, aten.permute.default}
_FUSED = frozenset(ON_CODES.values())
"""Operators of unchanged ONNX subgraphs that the runtime computes in integers, also in forms that
its integer kernels do not support."""


def block_unplanned_fusion(module: fx.GraphModule, plan: QuantPlan, target: Target) -> None:
    """Insert idle operators into a QDQ graph where the runtime would fuse unplanned, in place."""
    fusible = [d for d in plan.nodes if d.op in target.implicit_fusions]
    floats = {d.node for d in fusible if d.execution is Execution.FLOAT}
    integer = [d for d in plan.nodes if d.execution is Execution.INTEGER and d.output is None]
    results = {d.node for d in integer if d.op in target.implicit_fusions}
    pools = {d.node for d in plan.nodes if d.op == _POOL and d.execution is Execution.FLOAT}
    products = {d.node for d in integer} if target.implicit_fusions else set[str]()
    for node in G.calls(module.graph):
        is_custom = node.target in CUSTOM_FORMS
        if target.implicit_fusions and (is_custom or part_kind(node) in _FUSED):
            _idle_inputs(node)
        stored = any(n.target is torch_ops.dequantize_once for n in node.all_input_nodes)
        fused = (stored or G.name_of(node) in floats) and _reads_codes_alone(node)
        if fused or (target.implicit_fusions and G.name_of(node) in pools):
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
